"""Peers that never authenticate, at a broker with users and TLS: they are bounded, and others are served."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from oncemq.client.sync import Client
from oncemq.testing.broker_process import BrokerProcess
from tests.forking import ForkedBroker
from tests.hostile import stream_peers
from tests.hostile.watched import MIB, Watched
from tests.secured_folder import SecuredFolder

GROWTH_BYTES_MAX = 64 * MIB
#: A quarter of these connections may be unopened.
_FLAGS = ("--connections-max=1200", "--segment-bytes=6MiB", "--batch-bytes-max=4MiB")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> SecuredFolder:
    return SecuredFolder(tmp_path_factory.mktemp("secured"))


@pytest.fixture(scope="module")
def broker(folder: SecuredFolder) -> Iterator[BrokerProcess]:
    options = {"token_file": str(folder.kitchen), "tls": folder.ca}
    broker = ForkedBroker(folder.data, *_FLAGS, client_options=options)
    broker.start()
    with broker.connect() as client:
        client.create_topic("orders")
        client.subscribe("orders", "hostile")
    yield broker
    broker.kill()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with broker.connect() as client:
        yield client


@pytest.mark.parametrize(
    "attack",
    [
        lambda url, _: silent_connections(url),
        lambda url, ca: stream_peers.half_handshakes(url, ca, count=2000, seconds=0.6),
        lambda url, ca: stream_peers.slow_handshakes(url, ca, count=200, seconds=1.0),
        lambda url, ca: stream_peers.wrong_tokens(url, ca, seconds=0.5),
        lambda url, _: stream_peers.connection_flood(url, seconds=0.5),
        lambda url, _: stream_peers.malformed(url, seconds=0.5),
    ],
    ids=["silent", "half handshakes", "slow handshakes", "wrong tokens", "connection flood", "malformed"],
)
def test_others_connect_and_are_served_during_an_attack(
    broker: BrokerProcess, client: Client, folder: SecuredFolder, attack: Callable[[str, str], object]
) -> None:
    def ask() -> None:
        client.put("orders", b"one pizza")
        with broker.connect() as another:
            another.put("orders", b"another one")

    Watched(broker.pid, ask, GROWTH_BYTES_MAX).attack(lambda: attack(broker.url, folder.ca))


def silent_connections(url: str) -> None:
    """Those that were there longest are disconnected at once."""
    with pytest.raises(ConnectionResetError):
        stream_peers.silent_connections(url, count=2000, seconds=20.0)


def test_the_log_has_what_happened_and_no_secret(broker: BrokerProcess, client: Client, folder: SecuredFolder) -> None:
    client.put("orders", b"one pizza")
    stream_peers.wrong_tokens(broker.url, folder.ca, seconds=0.1)
    stream_peers.malformed(broker.url, seconds=0.1)
    text = broker.log_path.read_text(errors="replace")
    for counter in ("connections_refused", "tls_failed"):
        assert f"({counter}: " in text
    assert "omq-made-up" not in text
    assert folder.kitchen.read_text().strip() not in text
