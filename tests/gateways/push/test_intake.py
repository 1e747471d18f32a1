"""What publishers send while nobody can store it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from oncemq.broker.process import free_url
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.intake import Intake


def test_a_full_buffer_drops_what_comes_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def overflow() -> Counters:
        counters = Counters()
        intake = Intake([free_url()], counters, buffer_bytes_max=10_000)
        for _ in range(30):
            intake.take([b"orders", bytes(900)])
        intake.flush()
        assert not intake.is_empty
        assert counters["publish_dropped"] == 20
        intake.close()
        return counters

    with caplog.at_level(logging.ERROR, "oncemq.push"):
        counters = asyncio.run(overflow())
    # And at the end, what was still waiting.
    assert counters["publish_dropped"] == 30
    assert "messages of publishers are lost" in caplog.text


@pytest.mark.parametrize(
    "frames", [[b""], [b"nospace"], [b"a", b"b", b"c"], [b"\xff", b"x"], [b"a\nb", b"x"], [b"a*", b"x"], [b"", b"x"]]
)
def test_what_has_no_topic_is_counted_and_left_out(frames: list[bytes]) -> None:
    async def take() -> None:
        counters = Counters()
        intake = Intake([free_url()], counters, buffer_bytes_max=10_000)
        intake.take(frames)
        assert intake.is_empty
        assert counters["publish_malformed"] == 1
        intake.close()

    asyncio.run(take())
