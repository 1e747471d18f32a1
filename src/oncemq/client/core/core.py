"""The client without I/O: what to send, what an answer means, when to try again.

There are no sockets, threads, clocks or random numbers here. Time, names and nonces come in as arguments, so that a
simulator runs the same code with virtual time. A driver does the following, in any order:

    pending = core.submit(operation, payload)      or ask(command), greet(), bye()
    for frames in core.outgoing(now_ms): send them
    core.receive(now_ms, frames)                   for everything that arrives, whatever it is
    if core.check(now_ms, wire): open a new connection   at `next_deadline_ms()` at the latest
    core.connection_lost(now_ms)                   if a connection was lost, and another one is open
    core.refused(now_ms, error)                    if no connection can be opened, and trying again is of no use

`pending.done` shows when there is an answer. `wire` says how many bytes the connection has transferred (wire.py): while
a large request or reply is under way, its answer is not overdue.

A session starts with a `Hello` of epoch 0. After each new connection it is resumed with a `Hello` of its epoch, and
commands that are not decided are sent again in order of number. `Fenced` and `SessionUnknown` are final, with one
exception: an anonymous session that expired with nothing in doubt continues under another name. A standby, or a broker
that was replaced, is left for the next address. A numbered command that its caller gave up is sent as a `Void` under
the same number, so that an operation that was reported as failed is not executed later.

With an *outbox*, each numbered operation is durable in it, with its number, before `submit` returns. It is never given
up: callers stop waiting, but the core continues to try. How an operation ended is written to the outbox before the
next request tells the broker that its answer was seen.

Each part owns its state: the session (session.py), the commands (command_table.py) with the in-flight window
(inflight.py), requests (requests.py), pauses (backoff.py) and outbox queue (outbox_queue.py), and the choice of broker
(failover.py). The handshake, the sender and the response handler work on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oncemq.client.core.commands.command_table import CommandTable
from oncemq.client.core.commands.observer import Observer
from oncemq.client.core.commands.pending import Pending, PendingCommand
from oncemq.client.core.commands.session import Session
from oncemq.client.core.commands.wire import WireBytes
from oncemq.client.core.failover import Failover
from oncemq.client.core.handshake import Handshake
from oncemq.client.core.options import Options
from oncemq.client.core.responses import ResponseHandler
from oncemq.client.core.sender import RequestSender
from oncemq.client.core.validation import check_command, check_operation, check_payloads, too_large
from oncemq.client.outbox.contract import Outbox, is_transient
from oncemq.protocol import errors
from oncemq.protocol.commands import As, Bye, Command, Keyed, Numbered, Operation, Put
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import Done

#: The payloads of an operation, in the order of its envelopes. A single payload needs no tuple.
Payloads = Frame | tuple[Frame, ...] | None

_NEVER = float("inf")


class Core:
    """The commands of one session. The top of this file shows how a driver uses it."""

    def __init__(
        self,
        session: str,
        anonymous: bool,
        nonce: int,
        options: Options | None = None,
        renew: Callable[[], tuple[str, int]] | None = None,
        outbox: Outbox | None = None,
        observer: Observer | None = None,
    ) -> None:
        """`renew` returns another name and nonce for an anonymous session that has expired. With an `outbox`, the
        session is the one of the outbox. The `observer` gets reports about commands and deliveries. Raises what the
        outbox raises."""
        assert outbox is None or (session == outbox.session and not anonymous)
        self.options = options = options or Options()
        self.observer = observer or Observer()
        #: Neither an outbox nor an observer must know of a put before it is sent.
        self._can_send_alone = outbox is None and observer is None
        self._session = Session(session, anonymous, nonce, renew)
        self._commands = CommandTable(options, self._session, outbox, self.observer)
        self._window = self._commands.window
        self._requests = self._commands.requests
        self._backoff = self._commands.backoff
        self._outbox = self._commands.outbox
        self._failover = Failover(options, self._commands)
        self._handshake = Handshake(options, self._commands, self._failover)
        self._sender = RequestSender(options, self._commands)
        self._responses = ResponseHandler(self._commands, self._failover, self._handshake)

    # Submitting.

    def submit(
        self,
        operation: Operation,
        payload: Payloads = None,
        *,
        give_up_ms: float = 0.0,
        on_done: Callable[[Pending], None] | None = None,
        caller: str = "",
    ) -> Pending:
        """Submit a numbered operation: it is executed once, in the order of these calls. A gateway does it for a
        `caller`.

        With an outbox there is no time limit unless `give_up_ms` sets one, and the operation is executed even if the
        limit passes. Raises TypeError, NameInvalid, Malformed or TooLarge for an operation that can't be sent, and
        what the outbox raises; then it was not stored."""
        if self._outbox is not None:
            [pending] = self.submit_all([(operation, payload)], give_up_ms=give_up_ms, on_done=on_done)
            return pending
        payloads = _checked(operation, payload)
        pending = Pending(give_up_ms or self.options.patience_ms, on_done)
        if self._accepts(pending, operation, payloads):
            self._window.add(PendingCommand(operation, payloads, pending, caller=caller))
        return pending

    # A put that is alone. Its request is sent before it is noted, so that the broker works meanwhile.

    def alone(self, operation: Put, payload: Frame, now_ms: float) -> list[Frame] | None:
        """Return the request for a put, if there is nothing else to send or to wait for before it. Send it and call
        `sent_alone`, whatever happens in between. None: use `submit`."""
        session = self._session
        if (
            not session.is_open
            or session.finished is not None
            or self._window
            or not self._can_send_alone
            or not self._failover.is_serving
            or self._backoff.obstacle is not None
            or now_ms < self._backoff.until_ms
            or len(payload) > session.batch_bytes_max
        ):
            return None
        check_operation(operation)
        return self._sender.alone(operation, payload)

    def sent_alone(self, operation: Put, payload: Frame, frames: list[Frame], now_ms: float) -> Pending:
        """The request of `alone` was sent. From now on it is a command like any other."""
        pending = Pending(self.options.patience_ms)
        command = PendingCommand(operation, (payload,), pending)
        self._window.start(command, len(payload))
        self._commands.alone = command
        self._requests.encoded(self._requests.add_alone(command, now_ms, self.options.timeout_ms), frames)
        return pending

    def submit_all(
        self,
        operations: Sequence[tuple[Operation, Payloads]],
        *,
        give_up_ms: float = 0.0,
        on_done: Callable[[Pending], None] | None = None,
    ) -> list[Pending]:
        """Submit several operations, as `submit` does, in this order. An outbox makes them durable together."""
        checked = [(operation, _checked(operation, payload)) for operation, payload in operations]
        patience_ms = give_up_ms or (self.options.patience_ms if self._outbox is None else _NEVER)
        pendings = [Pending(patience_ms, on_done) for _ in checked]
        accepted = [
            (item, pending) for item, pending in zip(checked, pendings, strict=True) if self._accepts(pending, *item)
        ]
        if self._outbox is None:
            for (operation, payloads), pending in accepted:
                self._window.add(PendingCommand(operation, payloads, pending))
        elif accepted:
            try:
                self._outbox.append([item for item, _ in accepted], [pending for _, pending in accepted])
            except errors.OnceMQError as error:
                if not is_transient(error):
                    self._commands.finish(error)
                raise
        return pendings

    def ask(self, command: Command, payload: Payloads = None, *, give_up_ms: float = 0.0) -> Pending:
        """Submit a command that is safe to repeat: a get, an ack, a read, a list, a health check; or an operation of
        another session or under a key, which identify a repetition. Raises as `submit` does."""
        check_command(command)
        plain = command.command if isinstance(command, As) else command
        operation = plain.operation if isinstance(plain, Keyed | Numbered) else None
        payloads = _frames_of(payload)
        if operation is not None:
            check_payloads(operation, payloads)
        pending = Pending(give_up_ms or self.options.patience_ms)
        if self._accepts(pending, operation, payloads):
            self._commands.unnumbered[PendingCommand(command, payloads, pending)] = None
        return pending

    def greet(self) -> Pending:
        """Open the session now, not with its first numbered command."""
        pending = Pending(self.options.patience_ms)
        if self._accepts(pending):
            if self._session.is_open:
                pending.succeed(Done())
            else:
                self._session.waiters.append(pending)
        return pending

    def bye(self, *, for_good: bool = False) -> Pending:
        """End an anonymous session. A named session stays, unless it ends `for_good`."""
        session = self._session
        if (session.anonymous or for_good) and session.epoch and session.finished is None:
            return self.ask(Bye(session.name, session.epoch, for_good))
        pending = Pending(0.0)
        pending.succeed(Done())
        return pending

    def give_up(self, pending: Pending, error: errors.OnceMQError) -> None:
        """A caller does not want to wait any longer: fail its command, whose number becomes void. A command in an
        outbox is executed nevertheless."""
        self._commands.give_up_caller(pending, error)

    def _accepts(self, pending: Pending, operation: Operation | None = None, payloads: tuple[Frame, ...] = ()) -> bool:
        """Whether a command may be submitted. If not, it fails here."""
        session = self._session
        # The broker would not even receive what is too large.
        too_large_error = None if operation is None else too_large(operation, payloads, session.batch_bytes_max)
        error = too_large_error or session.finished
        if error is not None:
            pending.fail(error)
            return False
        if self._failover.is_away:
            self._failover.wake()
        return True

    # The state.

    @property
    def session(self) -> str:
        """The session's name."""
        return self._session.name

    @property
    def epoch(self) -> int:
        """0 until the broker has opened the session."""
        return self._session.epoch

    @property
    def broker_id(self) -> str:
        """Empty until the broker has opened the session."""
        return self._session.broker_id

    @property
    def has_outbox(self) -> bool:
        """Whether operations are made durable here, also while the broker is away."""
        return self._outbox is not None

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that the broker accepts; 0 until it is known."""
        return self._session.batch_bytes_max

    @property
    def finished(self) -> errors.OnceMQError | None:
        """The final error, once there is one: every command fails with it."""
        return self._session.finished

    @property
    def is_idle(self) -> bool:
        """No caller waits for anything, and the outbox is empty."""
        return self._commands.is_idle

    @property
    def obstacle(self) -> errors.OnceMQError | None:
        """Why commands can't be executed at the moment, if the broker has said."""
        return self._backoff.obstacle

    @property
    def term(self) -> int:
        """The highest term of any broker that has answered; 0 if there is no standby."""
        return self._failover.term

    @property
    def discarded_count(self) -> int:
        """Answers that could not be read or belonged to nothing."""
        return self._responses.discarded_count

    def report_at_once(self, codes: frozenset[str]) -> None:
        """Fail commands immediately when the broker answers "not now" with one of these codes. Other codes are
        retried."""
        self._backoff.reported_codes = codes

    # Sending and receiving.

    def outgoing(self, now_ms: float) -> list[list[Frame]]:
        """Requests to send now, each a list of frames."""
        failover = self._failover
        if failover.is_away or self._session.finished is not None or failover.is_leaving:
            return []
        requests: list[list[Frame]] = []
        if self._commands.unnumbered:
            if not failover.holds_unnumbered:
                self._sender.send_unnumbered(now_ms, requests)
            elif self._session.is_open:
                self._commands.start_unnumbered(now_ms)
        if self._session.is_open:
            if self._window.has_sendable and now_ms >= self._backoff.until_ms:
                self._sender.send_numbered(now_ms, requests)
        elif now_ms >= self._handshake.due_ms:
            requests.append(self._handshake.request(now_ms))
        return requests

    def has_outgoing(self, now_ms: float) -> bool:
        """Whether there may be something to send after an answer has arrived."""
        return (
            self._session.is_open
            and not self._failover.is_away
            and self._window.has_sendable
            and now_ms >= self._backoff.until_ms
        )

    def receive(self, now_ms: float, frames: Sequence[Frame]) -> None:
        """Process an answer, or anything else that has arrived. Never raises."""
        self._responses.receive(now_ms, frames)

    # Time.

    def next_deadline_ms(self) -> float:
        """When `check` or `outgoing` has something to do; infinite if nothing is awaited."""
        failover, session = self._failover, self._session
        if failover.is_away or session.finished is not None:
            return _NEVER
        if failover.is_leaving:
            return failover.leave_ms
        deadline_ms = min(self._requests.next_deadline_ms(), self._handshake.due_ms)
        if not failover.holds_unnumbered:
            for command in self._commands.unnumbered:
                if command.must_send:
                    deadline_ms = min(deadline_ms, command.not_before_ms)
        if session.is_open and self._window.has_sendable:
            deadline_ms = min(deadline_ms, self._backoff.until_ms)
        return deadline_ms

    def is_check_due(self, now_ms: float) -> bool:
        """Whether `check` has something to do."""
        failover = self._failover
        if failover.is_away or self._session.finished is not None:
            return False
        return now_ms >= min(failover.leave_ms, self._requests.next_deadline_ms())

    def check(self, now_ms: float, wire: WireBytes | None = None) -> bool:
        """Look for overdue answers. `wire` says what the connection has transferred since it was opened, if that is
        known. True: open a new connection, to the next address."""
        failover, requests = self._failover, self._requests
        if not self.is_check_due(now_ms):
            return False
        if failover.move_if_due(now_ms):
            return True
        requests.observe(now_ms, wire)
        overdue = requests.overdue(now_ms)
        if not overdue:
            return False
        if all(map(requests.is_single_loss, overdue)):
            for sent in overdue:
                self._commands.resend_lost(sent)
            failover.lost(now_ms, overdue)
            return False
        failover.timed_out(now_ms, overdue)
        return True

    def connection_lost(self, now_ms: float) -> None:
        """The connection was lost, and another one is open: resume the session, and send again what is not
        answered."""
        if self._session.finished is not None:
            return
        if self._failover.is_away:
            # No caller waits. The next command is sent after a hello: another broker may answer on this connection.
            self._commands.disconnect()
        else:
            self._failover.interrupted(now_ms)

    def refused(self, now_ms: float, error: errors.OnceMQError) -> None:
        """The broker has refused this client, or can't be trusted: fail everything. The next command leads to another
        attempt. An outbox that is not empty tries again after a pause."""
        if self._session.finished is None:
            self._handshake.connection_refused(now_ms, error)


def _frames_of(payload: Payloads) -> tuple[Frame, ...]:
    if payload is None:
        return ()
    return payload if isinstance(payload, tuple) else (payload,)


def _checked(operation: Operation, payload: Payloads) -> tuple[Frame, ...]:
    """The payloads of an operation that can be sent. Raises TypeError, NameInvalid, Malformed or TooLarge."""
    payloads = _frames_of(payload)
    check_operation(operation)
    check_payloads(operation, payloads)
    return payloads
