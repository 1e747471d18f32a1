"""The broker's clock. It never runs backwards, and a jump of the wall clock does not expire anything.

It starts at the wall clock or at the last recorded time, whichever is later, and then follows the monotonic clock.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def not_before(self, recorded_ms: int) -> None:
        """Continue from a time that was recorded before a restart, if that time is later than now."""


class SystemClock:
    def __init__(self) -> None:
        self._base_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        return self._base_ms + time.monotonic_ns() // 1_000_000

    def not_before(self, recorded_ms: int) -> None:
        self._base_ms += max(0, recorded_ms - self.now_ms())
