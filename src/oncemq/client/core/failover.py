"""Which of several addresses is asked: leaving one whose broker does not serve, at once but not in a spin.

A *standby* says so itself. A broker whose place was taken may not know it yet: it has a lower *term* than the highest
that was met, and what it says does not count. Knows neither sockets nor what was asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.client.core.pending import Pending
from oncemq.protocol import errors
from oncemq.protocol.replies import HelloReply, NotNow, Reply

_NEVER = float("inf")


class Rotation:
    def __init__(self, pause_ms: float) -> None:
        #: The highest that was met; 0: of a broker that has no standby.
        self.term = 0
        self._pause_ms = pause_ms
        self._leave_ms = _NEVER
        self._left_ms = -_NEVER
        #: Since when the active broker is looked for; 0: it has answered.
        self._lost_ms = 0.0

    @property
    def is_leaving(self) -> bool:
        """Nothing is sent here any more."""
        return self._leave_ms != _NEVER

    @property
    def leave_ms(self) -> float:
        """When the next address is due; infinite where this one will do."""
        return self._leave_ms

    def objection(self, replies: Sequence[Reply]) -> errors.Standby | None:
        """Why the broker that says this is not the one to ask."""
        first, last = replies[0], replies[-1]
        if isinstance(first, NotNow) and first.code == errors.Standby.code:
            return errors.Standby(first.text)
        if isinstance(last, HelloReply) and last.term < self.term:
            return errors.Standby(
                f"a broker of term {last.term} answered, and another has begun term {self.term}. If its database was "
                "restored from a backup, connect anew: then this is the one"
            )
        return None

    def met(self, term: int) -> None:
        self.term = max(self.term, term)

    def heard(self) -> None:
        """The active broker has answered."""
        self._lost_ms = 0.0

    def lost(self, now_ms: float) -> None:
        """No answer, or not of the active broker: from the first time on, patience counts."""
        self._lost_ms = self._lost_ms or now_ms

    def leave(self, now_ms: float) -> None:
        self.lost(now_ms)
        self._leave_ms = max(now_ms, self._left_ms + self._pause_ms)

    def is_due(self, now_ms: float) -> bool:
        return now_ms >= self._leave_ms

    def left(self, now_ms: float) -> None:
        """There is a new connection."""
        self._leave_ms = _NEVER
        self._left_ms = now_ms

    def is_out_of_patience(self, now_ms: float, pending: Pending) -> bool:
        """Its time is over, and it has seen the active broker away for as long: a get may wait for longer than that."""
        if pending.deadline_ms == 0.0:
            return False
        lost_until_ms = self._lost_ms + pending.give_up_ms if self._lost_ms else 0.0
        return now_ms >= max(pending.deadline_ms, lost_until_ms)
