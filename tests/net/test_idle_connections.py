"""Connections that send nothing cost little memory, and no client waits for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.processes import SMALL, resident_bytes, wait_until
from tests.forking import ForkedBroker
from tests.stream_peer import OPENING, StreamPeer

COUNT = 500
#: What a connection may take: its socket, its account and its reader.
BYTES_MAX = 8 * 1024


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = ForkedBroker(tmp_path / "data", *SMALL, f"--listen=oncemq+unix://{tmp_path}/unix")
    broker.start()
    yield broker
    broker.kill()


def descriptors_of(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


@pytest.mark.parametrize("opening", [OPENING, b""], ids=["opened", "silent"])
def test_many_idle_connections_take_little_memory_and_clients_are_served(
    broker: BrokerProcess, tmp_path: Path, opening: bytes
) -> None:
    with broker.connect() as client, contextlib.ExitStack() as stack:
        subscription = client.subscribe("orders", "kitchen")
        client.put("orders", "first")
        before, before_bytes = descriptors_of(broker), resident_bytes(broker.pid)
        urls = (broker.url, f"oncemq+unix://{tmp_path}/unix")
        idle = [stack.enter_context(StreamPeer(urls[number % 2], opening)) for number in range(COUNT)]
        wait_until(lambda: descriptors_of(broker) == before + COUNT, "all connections are accepted")
        for peer in idle if opening else ():
            while peer.properties is None:
                peer.receive_some()
        for number in range(10):
            assert client.put("orders", str(number)).offset == number + 1
        assert [message.offset for message in subscription.get_many(11, timeout_s=30)] == list(range(11))
        with broker.connect() as late:
            assert late.health()
        assert (resident_bytes(broker.pid) - before_bytes) / COUNT < BYTES_MAX
        stack.close()
        wait_until(lambda: descriptors_of(broker) == before, "all connections are closed")
        assert client.put("orders", "last").offset == 11
