"""Pauses between attempts while the broker answers "not now"."""

from __future__ import annotations

from oncemq.client.core.commands.pending import Pending
from oncemq.client.core.options import Options
from oncemq.protocol import errors

#: Obstacles that pass quickly.
_SHORT = frozenset({"WINDOW_FULL", "STOPPING", "OVERLOADED", "DAMAGED_IN_TRANSIT"})


class Backoff:
    """The pause of a session's numbered commands, and the reason for it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        #: "Not now" with one of these codes fails the command immediately. Where many callers share a session, one of
        #: them must not delay the others.
        self.reported_codes: frozenset[str] = frozenset()
        #: Why the broker did not accept the last command. While there is a pause, there is an obstacle.
        self.obstacle: errors.OnceMQError | None = None
        #: Nothing numbered is sent before this.
        self.until_ms = 0.0
        self._pause_ms = 0.0

    def pause(self, now_ms: float, obstacle: errors.OnceMQError) -> None:
        """Start a pause, twice as long as the last one, unless one is running."""
        self.obstacle = obstacle
        if now_ms < self.until_ms:
            return
        self._pause_ms = min(max(2 * self._pause_ms, self._first_ms(obstacle.code)), self._options.pause_ms_max)
        self.until_ms = now_ms + self._pause_ms

    def reset(self) -> None:
        """End the pause; the next one is short again."""
        self.until_ms = self._pause_ms = 0.0

    def retry_at_ms(self, now_ms: float, code: str, retries: int) -> float:
        """When a command that needs no order is sent again: it has a pause of its own."""
        return now_ms + min(self._first_ms(code) * 2.0 ** min(retries, 16), self._options.pause_ms_max)

    def must_report(self, now_ms: float, pending: Pending, code: str) -> bool:
        """Whether "not now" fails the command, instead of being retried."""
        return now_ms >= pending.deadline_ms or code in self.reported_codes

    def _first_ms(self, code: str) -> float:
        return self._options.pause_short_ms if code in _SHORT else self._options.pause_ms
