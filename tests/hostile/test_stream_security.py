"""Peers that never authenticate, at a stream listener with TLS: they are bounded, and others connect and are served."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncemq.client.sync import Client
from oncemq.net.tls import client_context
from tests.hostile import stream_peers
from tests.hostile.watched import MIB, Watched
from tests.secure_broker import SecureProcess, connect, make_keys

GROWTH_BYTES_MAX = 64 * MIB
#: A quarter of them may be unopened.
_CONNECTIONS_MAX = 1200


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[SecureProcess]:
    broker = SecureProcess(tmp_path_factory.mktemp("secure"), keys, connections_max=_CONNECTIONS_MAX)
    with connect(broker.url, broker.shown) as client:
        client.create_topic("orders")
        client.subscribe("orders", "hostile")
    yield broker
    broker.stop()


@pytest.fixture
def client(broker: SecureProcess) -> Iterator[Client]:
    with connect(broker.url, broker.shown) as client:
        yield client


@pytest.fixture
def trust(keys: Path) -> ssl.SSLContext:
    return client_context(str(keys / "ca.pem"))


Attack = Callable[[str, ssl.SSLContext], object]


@pytest.mark.parametrize(
    "attack",
    [
        lambda url, _: silent_connections(url),
        lambda url, trust: stream_peers.half_handshakes(url, trust, count=2000, seconds=0.6),
        lambda url, trust: stream_peers.slow_handshakes(url, trust, count=200, seconds=1.0),
        lambda url, trust: stream_peers.wrong_tokens(url, trust, seconds=0.5),
        lambda url, _: stream_peers.connection_flood(url, seconds=0.5),
        lambda url, _: stream_peers.malformed(url, seconds=0.5),
    ],
    ids=["silent", "half handshakes", "slow handshakes", "wrong tokens", "connection flood", "malformed"],
)
def test_others_connect_and_are_served_during_an_attack(
    broker: SecureProcess, client: Client, trust: ssl.SSLContext, attack: Attack
) -> None:
    def ask() -> None:
        client.put("orders", b"one pizza")
        with connect(broker.url, broker.shown) as another:
            another.put("orders", b"another one")

    Watched(broker.pid, ask, GROWTH_BYTES_MAX).attack(lambda: attack(broker.url, trust))


def silent_connections(url: str) -> None:
    """Those that were there longest are disconnected at once."""
    with pytest.raises(ConnectionResetError):
        stream_peers.silent_connections(url, count=2000, seconds=20.0)
