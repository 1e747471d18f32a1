"""When a broker is given up, and when the next address is tried.

A *standby* says that it is one, and is left for the next address immediately, but with a minimum time between two such
moves. A broker that was replaced may not know it yet: it has a lower *term* than the highest one seen, and its answers
do not count. After several timeouts in a row the broker counts as away, and nothing is sent until there is a new
command.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.client.core.command_table import CommandTable
from oncemq.client.core.options import Options
from oncemq.client.core.pending import Pending, PendingCommand
from oncemq.protocol import errors
from oncemq.protocol.replies import HelloReply, NotNow, Reply

_NEVER = float("inf")


class Failover:
    """Which broker counts: the address that is used, and the term that has been seen."""

    def __init__(self, options: Options, commands: CommandTable) -> None:
        self._options = options
        self._commands = commands
        self._session = commands.session
        #: The highest term seen; 0: the broker has no standby.
        self.term = 0
        #: Nothing is sent until there is a new command.
        self.is_away = False
        #: When this address is left for the next one; infinite if it is not.
        self.leave_ms = _NEVER
        self._left_ms = -_NEVER
        self._timeout_count = 0
        #: Since when the active broker has not answered; 0: it has.
        self._lost_ms = 0.0

    @property
    def is_leaving(self) -> bool:
        """Nothing more is sent to this address."""
        return self.leave_ms != _NEVER

    @property
    def needs_hello_first(self) -> bool:
        """Only a hello shows whether this broker is still the active one."""
        return self.term > 0 and not self._session.is_open

    def objection(self, replies: Sequence[Reply]) -> errors.Standby | None:
        """Why the broker that sent these replies is not the active one."""
        first, last = replies[0], replies[-1]
        if isinstance(first, NotNow) and first.code == errors.Standby.code:
            return errors.Standby(first.text)
        if isinstance(last, HelloReply) and last.term < self.term:
            return errors.Standby(
                f"a broker of term {last.term} answered, but another one has started term {self.term}. If its "
                "database was restored from a backup, connect again to use it"
            )
        return None

    def answered(self) -> None:
        """The active broker has answered."""
        self._lost_ms = 0.0
        self._timeout_count = 0

    def wake(self) -> None:
        """There is a new command: try again, although the broker was unreachable."""
        self.is_away = False
        self._timeout_count = 0

    # Moving to the next address.

    def leave(self, now_ms: float, error: errors.Standby) -> None:
        """This broker is not the active one: move to the next address."""
        self._timeout_count = 0
        self._commands.backoff.obstacle = error
        self._commands.disconnect()
        self._lost_ms = self._lost_ms or now_ms
        self.leave_ms = max(now_ms, self._left_ms + self._options.next_address_ms)
        self.give_up_overdue(now_ms, error, self._commands.all())
        # If no caller waits, the active broker is searched for when there is a new command.
        self.is_away = self._commands.is_idle

    def move_if_due(self, now_ms: float) -> bool:
        """Whether the next address is due. Then it is used from now on."""
        if now_ms < self.leave_ms:
            return False
        self.leave_ms = _NEVER
        self._left_ms = now_ms
        return True

    # Time limits.

    def timed_out(self, now_ms: float) -> None:
        """No answer: connect again, or after several attempts count the broker as away."""
        self._timeout_count += 1
        self._lost_ms = self._lost_ms or now_ms
        self._commands.disconnect()
        tries = self._options.tries
        if self._timeout_count >= tries:
            seconds = self._options.timeout_ms * tries / 1000
            text = "1 try" if tries == 1 else f"{tries} tries"
            self.give_up(errors.BrokerAway(f"no answer from {self._options.where} ({text} in {seconds:g} s)"))

    def give_up(self, error: errors.OnceMQError) -> None:
        """Fail all callers. If an outbox has something to send, the core continues to try; otherwise it rests until
        there is a new command."""
        self.is_away = not self._commands.has_outbox_work
        self._timeout_count = 0
        self._commands.fail_all(error)

    def give_up_overdue(self, now_ms: float, error: errors.OnceMQError, commands: Sequence[PendingCommand]) -> None:
        """Fail callers that have waited long enough for the session to open."""
        waiters = self._session.waiters
        for pending in [pending for pending in waiters if self._is_overdue(now_ms, pending)]:
            waiters.remove(pending)
            pending.fail(error)
        for command in [command for command in commands if self._is_overdue(now_ms, command.pending)]:
            self._commands.give_up(command, error)

    def _is_overdue(self, now_ms: float, pending: Pending | None) -> bool:
        """Whether its time limit has passed, and the active broker has been lost for that long. The second part
        matters for a long poll, which may wait longer than its time limit."""
        if pending is None or pending.deadline_ms == 0.0:
            return False
        lost_until_ms = self._lost_ms + pending.give_up_ms if self._lost_ms else 0.0
        return now_ms >= max(pending.deadline_ms, lost_until_ms)
