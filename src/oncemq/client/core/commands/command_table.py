"""All commands that are not completed, and how each of them ends: for its caller, the outbox and the observer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oncemq.client.core.commands.backoff import Backoff
from oncemq.client.core.commands.inflight import InflightWindow
from oncemq.client.core.commands.observer import Observer
from oncemq.client.core.commands.outbox_queue import OutboxQueue
from oncemq.client.core.commands.pending import Pending, PendingCommand
from oncemq.client.core.commands.requests import RequestTable, SentRequest
from oncemq.client.core.commands.session import Session
from oncemq.client.core.options import Options
from oncemq.client.outbox.contract import Outbox, is_transient
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import Refusal, Reply


class CommandTable:
    """The commands of a session, with the state of everything that is needed to send them."""

    def __init__(self, options: Options, session: Session, outbox: Outbox | None, observer: Observer) -> None:
        """Raises what the outbox raises."""
        self.session = session
        self.window = InflightWindow(options.window)
        self.requests = RequestTable()
        self.backoff = Backoff(options)
        self.outbox = None if outbox is None else OutboxQueue(outbox, self.window)
        self.observer = observer
        #: A put that was sent alone. It is in the window too.
        self.alone: PendingCommand | None = None
        #: Commands that are safe to repeat and need no order, in order of submission.
        self.unnumbered: dict[PendingCommand, None] = {}

    @property
    def is_idle(self) -> bool:
        """No caller waits for anything, and the outbox is empty."""
        return not (self.unnumbered or self.session.waiters or self.window.has_callers)

    @property
    def has_outbox_work(self) -> bool:
        """An outbox has something to send, whether or not a caller waits for it."""
        return self.outbox is not None and len(self.window) > 0

    def all(self) -> list[PendingCommand]:
        return [*self.unnumbered, *self.window]

    # Sending again.

    def resend(self, command: PendingCommand) -> None:
        if command.number:
            self.window.resend(command)
        else:
            command.must_send = True

    def resend_lost(self, sent: SentRequest) -> None:
        """A request, or its answer, is lost: send its commands again, unless they were meanwhile."""
        self.requests.end_wait(sent)
        if sent is self.session.hello:
            self.session.hello = None
        for command in sent.commands:
            if not command.is_completed and command.request_ids[-1] == sent.request_id:
                self.resend(command)

    def count_loss(self, lost_ms: float, command: PendingCommand, *, was_under_way: bool) -> None:
        """An attempt to send this command ended without an answer. For a numbered command, attempts count since a
        command was decided last, because the broker decides them in order."""
        if not self.has_losses(command):
            command.decided_count = self._decided_count(command)
            command.losses = command.transfers = 0
        if not command.losses or was_under_way:
            command.lost_ms = lost_ms
        command.losses += 1
        command.transfers += was_under_way

    def has_losses(self, command: PendingCommand) -> bool:
        """Whether attempts of this command count."""
        return command.losses > 0 and command.decided_count == self._decided_count(command)

    def _decided_count(self, command: PendingCommand) -> int:
        return 0 if command in self.unnumbered else self.window.decided_count

    def disconnect(self) -> None:
        """The connection is lost: resume the session on the next one, and send everything again there."""
        self.requests.abandon_all()
        self.session.disconnected()
        for command in self.unnumbered:
            command.must_send = True
            command.not_before_ms = 0.0

    def start_unnumbered(self, now_ms: float) -> None:
        """The commands without a number can't be sent yet: their time limits run nevertheless."""
        for command in self.unnumbered:
            if command.pending is not None:
                command.pending.start(now_ms)

    def load_outbox(self) -> None:
        """Bring what is sent next from the outbox into memory."""
        if self.outbox is None or self.session.finished is not None:
            return
        try:
            self.outbox.load()
        except errors.OnceMQError as error:
            self.finish(error)

    # The end of one command.

    def complete(self, now_ms: float, command: PendingCommand, reply: Reply, payloads: Sequence[Frame] = ()) -> None:
        """The broker has decided a command, or answered it."""
        outbox = self.outbox
        if command.outbox_number and outbox is not None:
            # This comes first: from the next request on, the broker may forget its verdict.
            recorded = self._write(now_ms, command, lambda: outbox.record(command, reply))
            if recorded is None:
                return
            reply = recorded
        session = self.session
        self.observer.answered(session.name, session.broker_id, command, reply)
        command.is_completed = True
        self.requests.complete(command)
        if command.number or command.outbox_number:
            self.window.complete(command)
            self.window.decided_count += 1
        else:
            self.unnumbered.pop(command, None)
        if command.pending is not None:
            command.pending.succeed(reply, payloads)

    def void_refused(self, now_ms: float, command: PendingCommand, refusal: Refusal) -> bool:
        """Refuse a command to its caller, and use its number for a void. False: the outbox could not write it."""
        outbox = self.outbox
        if (
            command.outbox_number
            and outbox is not None
            and self._write(now_ms, command, lambda: outbox.record_void(command, refusal)) is None
        ):
            return False
        pending = command.pending
        self.window.void(command)
        if pending is not None:
            pending.succeed(refusal)
        return True

    def _write(self, now_ms: float, command: PendingCommand, write: Callable[[], Reply]) -> Reply | None:
        """Write to the outbox how a command ended. None: it failed. Then the command counts as not answered, and is
        sent again."""
        try:
            return write()
        except errors.OnceMQError as error:
            if is_transient(error):
                self.window.resend_from(command.number)
                self.backoff.pause(now_ms, error)
            else:
                self.finish(error)
            return None

    def give_up(self, command: PendingCommand, error: errors.OnceMQError) -> None:
        """Fail a command for its caller. Its number becomes void; in an outbox, the command itself continues."""
        pending = command.pending
        if command.outbox_number:
            command.pending = None
        elif command.number:
            self.window.void(command)
        else:
            if command in self.unnumbered:
                del self.unnumbered[command]
            else:
                self.window.complete(command)
            command.is_completed = True
            self.requests.complete(command)
        if pending is not None:
            pending.fail(error)

    def give_up_caller(self, pending: Pending, error: errors.OnceMQError) -> None:
        """Give up the command of this caller."""
        if pending.done:
            return
        if self.outbox is not None and self.outbox.forget_caller(pending):
            pending.fail(error)
            return
        for command in self.all():
            if command.pending is pending:
                self.give_up(command, error)
                return

    # The end of all of them.

    def finish(self, error: errors.OnceMQError) -> None:
        """End the session. This is final: a session that tried to come back would fight with the one that replaced
        it."""
        self.session.finished = error
        self.session.is_open = False
        self.requests.abandon_all()
        self.fail_all(error)

    def fail_all(self, error: errors.OnceMQError) -> None:
        """Fail everything for its callers. With an outbox, the numbered commands continue, and callers without a
        time limit wait for them unless the session has ended."""
        waiters = self.session.take_waiters()
        unnumbered = list(self.unnumbered)
        self.unnumbered.clear()
        for command in unnumbered:
            command.is_completed = True
            self.requests.complete(command)
        if self.outbox is None:
            self.window.give_up_all(error)
        else:
            everyone = self.session.finished is not None
            self.window.fail_callers(error, everyone=everyone)
            self.outbox.fail_callers(error, everyone=everyone)
        for pending in [*waiters, *(command.pending for command in unnumbered)]:
            if pending is not None:
                pending.fail(error)
