"""Messages of publishers while the broker is unreachable."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import zmq

from oncemq.gateways.push import gateway as gateway_module
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.gateway import PushGateway
from oncemq.gateways.push.publishers.intake import Intake
from oncemq.testing.broker_process import free_url
from tests.gateways.push.processes import settings_here


def test_a_full_buffer_drops_what_comes_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def overflow() -> Counters:
        counters = Counters()
        intake = Intake([free_url()], counters, buffer_bytes_max=10_000 + 2_048)
        for _ in range(30):
            intake.add([b"orders", bytes(900)])
        intake.flush()
        assert not intake.is_empty
        assert counters["publish_dropped"] == 20
        intake.close()
        return counters

    with caplog.at_level(logging.ERROR, "oncemq.push"):
        counters = asyncio.run(overflow())
    # And the messages that were still waiting at the end.
    assert counters["publish_dropped"] == 30
    assert "publishers' messages are dropped" in caplog.text


def test_many_topics_fill_the_buffer_too() -> None:
    async def overflow() -> None:
        counters = Counters()
        intake = Intake([free_url()], counters, buffer_bytes_max=100_000)
        for number in range(1_000):
            intake.add([b"topic-%d" % number, b"x"])
        assert counters["publish_dropped"] > 950
        intake.close()
        assert counters["publish_dropped"] == 1_000

    asyncio.run(overflow())


def test_many_messages_that_are_too_large_don_t_stop_those_behind_them() -> None:
    async def refuse() -> None:
        counters = Counters()
        intake = Intake([free_url()], counters, buffer_bytes_max=2**24)
        # As the reply to hello says.
        intake._session.driver().core._session.batch_bytes_max = 1_000
        for _ in range(3_000):
            intake.add([b"orders", bytes(2_000)])
        intake.add([b"orders", b"small"])
        intake.flush()
        assert counters["publish_dropped"] == 3_000
        assert not intake.is_empty
        intake.close()
        assert counters["publish_dropped"] == 3_001

    asyncio.run(refuse())


def test_what_has_arrived_when_the_gateway_is_stopped_is_stored_or_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "_DRAIN_S", 0.05)

    async def stop() -> None:
        settings = settings_here(publish="inproc://stopping")
        gateway = PushGateway(free_url(), settings)
        await gateway.start()
        publisher: Any = zmq.Context.instance().socket(zmq.PUB)
        publisher.setsockopt(zmq.SNDHWM, 0)
        publisher.connect(settings.publish)
        while not gateway.counters["publish_malformed"]:
            # Until they are connected.
            publisher.send(b"nospace")
            await asyncio.sleep(0.001)
        for number in range(1_200):
            publisher.send_multipart([b"orders", b"%d" % number])
        await gateway.stop()
        # There is no broker.
        assert gateway.counters["publish_dropped"] == 1_200
        publisher.close(0)

    asyncio.run(stop())


@pytest.mark.parametrize(
    "frames", [[b""], [b"nospace"], [b"a", b"b", b"c"], [b"\xff", b"x"], [b"a\nb", b"x"], [b"a*", b"x"], [b"", b"x"]]
)
def test_what_has_no_topic_is_counted_and_left_out(frames: list[bytes]) -> None:
    async def take() -> None:
        counters = Counters()
        intake = Intake([free_url()], counters, buffer_bytes_max=10_000)
        intake.add(frames)
        assert intake.is_empty
        assert counters["publish_malformed"] == 1
        intake.close()

    asyncio.run(take())
