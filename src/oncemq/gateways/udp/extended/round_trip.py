"""The round trips of packets to one subscriber, and the timeout that follows from them (RFC 6298). It does no I/O."""

from __future__ import annotations

TIMEOUT_MS_FIRST = 200.0
TIMEOUT_MS_MIN = 20.0
TIMEOUT_MS_MAX = 5000.0


class RoundTrip:
    def __init__(self) -> None:
        self.smoothed_ms = 0.0
        self._deviation_ms = 0.0
        self._has_sample = False
        self._timeout_ms = TIMEOUT_MS_FIRST
        self._backoff = 1

    @property
    def timeout_ms(self) -> float:
        """How long to wait for an ack. It doubles with each `back_off`."""
        return min(self._timeout_ms * self._backoff, TIMEOUT_MS_MAX)

    @property
    def reordering_ms(self) -> float:
        """After this time, a packet that was overtaken is lost, and not late."""
        return self.smoothed_ms + 2 * self._deviation_ms if self._has_sample else TIMEOUT_MS_FIRST

    def note(self, passed_ms: float) -> None:
        """A packet that was sent once was acked after this time."""
        if self._has_sample:
            self._deviation_ms += (abs(passed_ms - self.smoothed_ms) - self._deviation_ms) / 4
            self.smoothed_ms += (passed_ms - self.smoothed_ms) / 8
        else:
            self._has_sample = True
            self.smoothed_ms, self._deviation_ms = passed_ms, passed_ms / 2
        timeout_ms = self.smoothed_ms + 4 * self._deviation_ms
        self._timeout_ms = min(max(timeout_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX)

    def back_off(self) -> None:
        """A timeout is over."""
        self._backoff = min(2 * self._backoff, 1 << 16)

    def end_backoff(self) -> None:
        """A packet was acked."""
        self._backoff = 1
