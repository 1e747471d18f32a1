"""The broker's clock. It never runs backwards, and a jump of the wall clock does not expire anything.

It starts at the wall clock and then follows the monotonic clock. There are two exceptions at the start, in which it
continues from the last recorded time: the wall clock was set back, or it is so far ahead that it may be wrong. Such a
leap has to be confirmed, because it would delete everything that is kept for a certain time.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Protocol

from oncemq.config.durations import format_duration

log = logging.getLogger("oncemq.broker")

#: A clock that is set back by less than this is not reported.
_SET_BACK_MS = 60_000


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def continue_from(self, time_ms: int) -> None:
        """Continue from a time that was recorded before a restart, whether it is earlier or later than now."""


class SystemClock:
    def __init__(self) -> None:
        self._base_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        return self._base_ms + time.monotonic_ns() // 1_000_000

    def continue_from(self, time_ms: int) -> None:
        self._base_ms += time_ms - self.now_ms()


def start_clock(clock: Clock, recorded_ms: int, leap_ms_max: int, *, is_trusted: bool) -> int:
    """Start the clock of a broker whose journal ends at a recorded time (0: it is new). Return how far the clock is
    behind the wall clock, because a leap is not confirmed (`is_trusted`)."""
    wall_ms = clock.now_ms()
    leap_ms = wall_ms - recorded_ms
    if not recorded_ms or 0 <= leap_ms <= leap_ms_max or (leap_ms > 0 and is_trusted):
        return 0
    clock.continue_from(recorded_ms)
    if leap_ms > 0:
        log.warning("%s", _describe_leap(wall_ms, recorded_ms, leap_ms_max))
        return leap_ms
    if -leap_ms > _SET_BACK_MS:
        log.warning(
            "the system clock was set back: it shows %s, but the journal ends at %s. The broker's time continues from "
            "there, so time stamps are ahead of the system clock.",
            _text(wall_ms),
            _text(recorded_ms),
        )
    return 0


def _describe_leap(wall_ms: int, recorded_ms: int, leap_ms_max: int) -> str:
    bound = f"{format_duration(leap_ms_max)} (clock_leap_ms_max)"
    return (
        f"the system clock shows {_text(wall_ms)}, but the journal ends at {_text(recorded_ms)}. This is more than "
        f"{bound}, so the clock may be wrong. The broker's time continues from the end of the journal, and nothing "
        "expires because of the difference. If the clock is wrong, correct it and start the broker again. If it is "
        "right, because the broker was stopped for long, start the broker again with --trust-clock or with "
        "ONCEMQ_TRUST_CLOCK=1. Until then time stamps are in the past, and delayed messages are late."
    )


def _text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
