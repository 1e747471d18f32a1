"""When a broker is given up, and when the next address is tried.

A *standby* says that it is one, and is left for the next address immediately, but with a minimum time between two such
moves. A broker that was replaced may not know it yet: it has a lower *term* than the highest one seen, and its answers
do not count. After several timeouts in a row the broker counts as away, and nothing is sent until there is a new
command.

A broker may also answer some commands and never others. So each command has a time limit, too, which runs from its
first timeout. While the connection transfers the request or its reply, there is no timeout; but a transfer that is
interrupted again and again ends after as many attempts.

After a command was given up, its void is decided before anything else is sent: then the outcome is final, and a query
shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isinf

from oncemq.client.core.commands.command_table import CommandTable
from oncemq.client.core.commands.pending import Pending, PendingCommand
from oncemq.client.core.commands.requests import SentRequest
from oncemq.client.core.options import Options
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
        #: Numbers below were given up, or are decided.
        self._given_up_below = 0

    @property
    def is_leaving(self) -> bool:
        """Nothing more is sent to this address."""
        return self.leave_ms != _NEVER

    @property
    def is_serving(self) -> bool:
        """Commands can be sent to this address."""
        return not self.is_away and self.leave_ms == _NEVER

    @property
    def holds_unnumbered(self) -> bool:
        """Commands without a number wait: for a hello, which shows whether this broker is still the active one, or
        until the outcome of what was given up is final."""
        if self.term > 0 and not self._session.is_open:
            return True
        return self._given_up_below > 0 and self._commands.window.seen_below < self._given_up_below

    def forget_numbers(self) -> None:
        """The session continues under another name."""
        self._given_up_below = 0

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
        # A broker that changes between active and standby may answer each hello, and no command. This attempt has ended
        # before its timeout.
        waiting = self._waiting()
        self._count_losses(now_ms + self._options.timeout_ms, waiting)
        self._give_up_exhausted(now_ms, waiting, error)
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

    def timed_out(self, now_ms: float, overdue: Sequence[SentRequest]) -> None:
        """No answer: connect again, or after several attempts count the broker as away."""
        self._timeout_count += 1
        self._lost_ms = self._lost_ms or now_ms
        self._commands.disconnect()
        if self._timeout_count >= self._options.tries:
            self.give_up(errors.BrokerAway(self._no_answer_text()))
            return
        waiting = self._waiting()
        self._count_losses(now_ms, waiting, overdue)
        self._give_up_exhausted(now_ms, waiting, self._not_answered())

    def interrupted(self, now_ms: float) -> None:
        """The connection was lost, and another one is open: this attempt has ended before its timeout. A broker that
        ends each connection without an answer is given up all the same."""
        self._lost_ms = self._lost_ms or now_ms
        if self.is_leaving:
            return
        self._commands.disconnect()
        # Callers that wait for the session have no command whose losses could be counted.
        self.give_up_overdue(now_ms, errors.BrokerAway(self._no_answer_text()), ())
        waiting = self._waiting()
        self._count_losses(now_ms + self._options.timeout_ms, waiting)
        self._give_up_exhausted(now_ms, waiting, self._not_answered())

    def lost(self, now_ms: float, overdue: Sequence[SentRequest]) -> None:
        """Later requests were answered, these were not. All numbered commands wait for the first one."""
        window = self._commands.window
        lost = {command: None for sent in overdue for command in sent.commands}
        if any(command.number == window.seen_below for command in lost):
            lost |= dict.fromkeys(window)
        else:
            lost = {command: None for command in lost if not command.number}
        self._count_losses(now_ms, lost, overdue)
        self._give_up_exhausted(now_ms, lost, self._not_answered())

    def _waiting(self) -> list[PendingCommand]:
        """Commands whose time limits run."""
        return [each for each in self._commands.all() if each.pending is not None and each.pending.deadline_ms]

    def _count_losses(
        self, lost_ms: float, commands: Iterable[PendingCommand], overdue: Sequence[SentRequest] = ()
    ) -> None:
        was_under_way = any(sent.was_under_way for sent in overdue)
        for command in commands:
            self._commands.count_loss(lost_ms, command, was_under_way=was_under_way)

    def _give_up_exhausted(self, now_ms: float, commands: Iterable[PendingCommand], error: errors.OnceMQError) -> None:
        """Fail callers whose commands were sent for long enough."""
        exhausted = [command for command in commands if self._is_exhausted(now_ms, command)]
        if exhausted:
            for command in exhausted:
                self._commands.give_up(command, error)
            self._hold_until_final()
            self.is_away = self._commands.is_idle

    def _not_answered(self) -> errors.BrokerAway:
        return errors.BrokerAway(f"{self._options.where} has not answered this command ({self._attempts_text()})")

    def _no_answer_text(self) -> str:
        return f"no answer from {self._options.where} ({self._attempts_text()})"

    def _is_exhausted(self, now_ms: float, command: PendingCommand) -> bool:
        options, pending = self._options, command.pending
        if pending is None or pending.done or isinf(pending.give_up_ms):
            return False
        # The first attempt, which may be a long poll, counts as one timeout.
        until_ms = command.lost_ms + options.patience_ms - options.timeout_ms
        is_over = now_ms >= until_ms or command.transfers >= options.tries
        return is_over and self._commands.has_losses(command)

    def _attempts_text(self) -> str:
        tries = self._options.tries
        text = "1 try" if tries == 1 else f"{tries} tries"
        return f"{text} in {self._options.timeout_ms * tries / 1000:g} s"

    def _hold_until_final(self) -> None:
        """Commands were given up. With an outbox, they are executed nevertheless."""
        if self._commands.outbox is None:
            self._given_up_below = self._commands.window.next_number

    def give_up(self, error: errors.OnceMQError) -> None:
        """Fail all callers. If an outbox has something to send, the core continues to try; otherwise it rests until
        there is a new command."""
        self.is_away = not self._commands.has_outbox_work
        self._timeout_count = 0
        self._commands.fail_all(error)
        self._hold_until_final()

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
