"""Busy polling: for a short time, a client and a broker look for what arrives without sleeping."""

from __future__ import annotations

import select
from pathlib import Path
from typing import Any

import pytest

import oncemq
import oncemq.aio
from oncemq.broker.network.listeners import Listeners
from oncemq.client.runtime.stream import StreamTransport
from oncemq.config.settings import ServeSettings
from oncemq.net.poller import Poller
from oncemq.net.system import System
from tests.forking import ForkedBroker
from tests.stream_peer import StreamPeer

LONG_US = 10_000_000


class Watched(System):
    """Records the timeout of each look."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def poll(self) -> Any:
        return _WatchedPoll(self.timeouts)

    def poller(self) -> Poller:
        return _WatchedPoller(self.timeouts)


class _WatchedPoll:
    def __init__(self, timeouts: list[float]) -> None:
        self._timeouts = timeouts
        self._poll = select.poll()
        self.register, self.modify = self._poll.register, self._poll.modify

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        self._timeouts.append(timeout_ms)
        return self._poll.poll(timeout_ms)


class _WatchedPoller(Poller):
    def __init__(self, timeouts: list[float]) -> None:
        super().__init__()
        self._timeouts = timeouts

    def wait(self, timeout_ms: float) -> list[tuple[int, int]]:
        self._timeouts.append(timeout_ms)
        return super().wait(timeout_ms)


def listeners(folder: Path, system: System, busy_poll_us: int) -> Listeners:
    settings = ServeSettings(listen=(f"oncemq+unix://{folder}/socket",), busy_poll_us=busy_poll_us)
    return Listeners(settings, system=system)


def test_a_client_does_not_sleep_before_its_reply(tmp_path: Path) -> None:
    broker = listeners(tmp_path, System(), 0)
    system = Watched()
    transport = StreamTransport(broker.addresses, system, busy_poll_us=LONG_US)
    try:
        # The connection can be written to at once.
        transport.wait(60_000)
        assert set(system.timeouts) == {0}
    finally:
        transport.close()
        broker.close()


def test_a_client_sleeps_if_its_reply_takes_longer(tmp_path: Path) -> None:
    broker = listeners(tmp_path, System(), 0)
    system = Watched()
    transport = StreamTransport(broker.addresses, system, busy_poll_us=1)
    try:
        while transport.wants_write:
            transport.receive()
        transport.wait(5)
        assert system.timeouts[-1] == 5
    finally:
        transport.close()
        broker.close()


def test_a_broker_does_not_sleep_before_the_next_request(tmp_path: Path) -> None:
    system = Watched()
    broker = listeners(tmp_path, system, LONG_US)
    try:
        with StreamPeer(broker.addresses[0]) as peer:
            peer.send([b"request"])
            while not (arrivals := broker.take(60_000)):
                pass
        assert [frames for _, frames in arrivals] == [[b"request"]]
        assert set(system.timeouts) == {0}
    finally:
        broker.close()


def test_a_broker_sleeps_if_the_next_request_takes_longer(tmp_path: Path) -> None:
    system = Watched()
    broker = listeners(tmp_path, system, 1)
    try:
        assert broker.take(3) == []
        assert system.timeouts[-1] == 3
    finally:
        broker.close()


def test_everything_works_with_busy_polling_on_both_sides(tmp_path: Path) -> None:
    broker = ForkedBroker(tmp_path / "data", "--segment-bytes=6MiB", "--batch-bytes-max=4MiB", "--busy-poll-us=200")
    broker.start()
    try:
        with oncemq.connect(broker.url, busy_poll_us=200) as client:
            client.subscribe("orders", "kitchen")
            assert [client.put("orders", str(number)).offset for number in range(20)] == list(range(20))
            messages = client.subscription("orders", "kitchen").get_many(20, timeout_s=20)
            assert [message.text for message in messages] == [str(number) for number in range(20)]
    finally:
        broker.stop()


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:5555", "memory:", "ipc:///tmp/nobody"])
def test_only_the_stream_transport_has_busy_polling(url: str) -> None:
    with pytest.raises(oncemq.SettingInvalid, match="busy_poll_us needs an address of the stream transport"):
        oncemq.connect(url, busy_poll_us=10)


def test_an_event_loop_has_no_busy_polling() -> None:
    with pytest.raises(oncemq.SettingInvalid, match="blocking clients"):
        oncemq.aio.connect(busy_poll_us=10)


def test_busy_polling_can_not_last_a_negative_time() -> None:
    with pytest.raises(oncemq.SettingInvalid, match="must not be below 0"):
        oncemq.connect(busy_poll_us=-1)
