"""The client's mind, sans I/O: what to send, what an answer means, when to try again.

No sockets, no threads, no clock, no randomness: time, names and nonces come in as arguments, so that a
simulator runs the same code under virtual time. A shell does this, in any order:

    pending = core.submit(operation, payload)      or ask(command), greet(), bye()
    for frames in core.outgoing(now_ms): send them
    core.receive(now_ms, frames)                   for everything that arrives, whatever it is
    if core.check(now_ms): open a new connection   at `next_deadline_ms()` at the latest

and sees in `pending.done` when an answer is there.

A session is greeted first (`Hello` with epoch 0, a user's call); after each new connection it is resumed (`Hello`
with its epoch), and what is still undecided is sent again in order of number. `Fenced` and `SessionUnknown`
are final; but an anonymous session that expired with nothing in doubt begins anew, under another name. A broker that
waits as a standby, or whose place was taken, is left for the next address (failover.py). Numbered commands that were
given up go on as `Void` under the same number, so that what a caller was told had failed does not happen later by
surprise.

With an *outbox*, each numbered operation is durable in it, with its number, before `submit` returns, and is never
given up: the core goes on trying whatever happens, and only callers lose their patience. How an operation ended is
written before the next request can tell the broker that its answer was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from oncemq.client.core.failover import Rotation
from oncemq.client.core.inflight import Flight
from oncemq.client.core.options import Options
from oncemq.client.core.outbox_queue import Backlog
from oncemq.client.core.pending import Entry, Pending, Sent
from oncemq.client.core.requests import Gathering, Requests
from oncemq.client.core.responses import Answers
from oncemq.client.core.validation import check_command, check_operation, check_payloads
from oncemq.client.outbox.contract import Outbox, is_passing
from oncemq.protocol import errors
from oncemq.protocol.commands import (
    Bye,
    Command,
    Get,
    GetAny,
    Health,
    Hello,
    Keyed,
    Numbered,
    Operation,
    Read,
    Take,
    envelopes_of,
)
from oncemq.protocol.frames import Frame, encode_request
from oncemq.protocol.replies import Done, Refusal

if TYPE_CHECKING:
    from oncemq.client.recording.recorder import Recorder

#: The payloads of an operation, in the order of its envelopes; a single one may come as it is.
Payloads = Frame | tuple[Frame, ...] | None

_NEVER = float("inf")


class Core(Answers):
    """One session's commands. See the top of this file for how a shell drives it."""

    def __init__(
        self,
        session: str,
        anonymous: bool,
        nonce: int,
        options: Options | None = None,
        renew: Callable[[], tuple[str, int]] | None = None,
        outbox: Outbox | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """`renew` gives an anonymous session another name and nonce, for when the broker has let it expire. With an
        `outbox` the session is the outbox's. A `recorder` is told what leaves and what is answered. Raises what the
        outbox raises."""
        assert outbox is None or (session == outbox.session and not anonymous)
        self.options = options or Options()
        self.session = session
        self.anonymous = anonymous
        self.epoch = 0
        self.broker_id = ""
        #: 0 until the broker has said it.
        self.batch_bytes_max = 0
        #: The final error, once there is one: everything fails with it.
        self.finished: errors.OnceMQError | None = None
        #: Messages that could not be read or belonged to nothing: for the curious.
        self.garbage_count = 0
        self.resends_count = 0
        self.recorder = recorder
        self._nonce = nonce
        self._renew = renew
        self._flight = Flight(self.options.window)
        self._requests = Requests()
        self._rotation = Rotation(self.options.next_address_ms)
        self._asks: dict[Entry, None] = {}
        self._greetings: list[Pending] = []
        self._hello: Sent | None = None
        self._hello_not_before_ms = 0.0
        self._is_open = False
        self._is_away = False
        self._timeouts = 0
        self._pause_until_ms = 0.0
        self._pause_ms = 0.0
        self._obstacle: errors.OnceMQError | None = None
        self._backlog: Backlog | None = None
        self._must_probe = False
        if outbox is not None:
            self._backlog = Backlog(outbox)
            self._must_probe = self._backlog.is_greeted
            self._flight.next_number = outbox.next_number
            self._backlog.fill(self._flight)

    # What a shell wants done.

    def submit(
        self,
        operation: Operation,
        payload: Payloads = None,
        *,
        give_up_ms: float = 0.0,
        on_done: Callable[[Pending], None] | None = None,
    ) -> Pending:
        """A numbered operation: it happens once, in the order of these calls.

        Raises TypeError, NameInvalid, Malformed or TooLarge for what can't be sent at all, and what the outbox
        raises: then it was not kept. With an outbox there is no end to the patience unless `give_up_ms` sets one,
        and when that is over the operation still happens."""
        [pending] = self.submit_all([(operation, payload)], give_up_ms=give_up_ms, on_done=on_done)
        return pending

    def submit_all(
        self,
        operations: Sequence[tuple[Operation, Payloads]],
        *,
        give_up_ms: float = 0.0,
        on_done: Callable[[Pending], None] | None = None,
    ) -> list[Pending]:
        """Several, as `submit` does, in this order. An outbox makes them durable together."""
        prepared = [(operation, _frames_of(payload)) for operation, payload in operations]
        for operation, payloads in prepared:
            check_operation(operation)
            check_payloads(operation, payloads)
        patience_ms = give_up_ms or (self.options.patience_ms if self._backlog is None else _NEVER)
        pendings = [Pending(patience_ms, on_done) for _ in prepared]
        self._begin([item for item in zip(prepared, pendings, strict=True) if self._may_submit(*item[0], item[1])])
        return pendings

    def _may_submit(self, operation: Operation, payloads: tuple[Frame, ...], pending: Pending) -> bool:
        # What is too large the broker would not even receive.
        error = self._too_large(operation, payloads)
        if error is not None:
            pending.fail(error)
        return error is None and self._may_begin(pending)

    def _begin(self, accepted: Sequence[tuple[tuple[Operation, tuple[Frame, ...]], Pending]]) -> None:
        if self._backlog is None:
            for (operation, payloads), pending in accepted:
                self._flight.add(Entry(operation, payloads, pending))
        elif accepted:
            try:
                self._backlog.append([item for item, _ in accepted], [pending for _, pending in accepted], self._flight)
            except errors.OnceMQError as error:
                if not is_passing(error):
                    self._finish(error)
                raise

    def _too_large(self, operation: Operation, payloads: tuple[Frame, ...]) -> errors.TooLarge | None:
        size = max(map(len, payloads), default=0)
        if not 0 < self.batch_bytes_max < size:
            return None
        what = "message" if sum(envelope.count for envelope in envelopes_of(operation)) == 1 else "batch"
        return errors.TooLarge(f"a {what} of {size} bytes; this broker takes up to {self.batch_bytes_max}")

    def ask(self, command: Command, payload: Payloads = None, *, give_up_ms: float = 0.0) -> Pending:
        """A command that repeating can't harm: get, ack, read, lists, health; and on behalf of somebody else, whose
        key or number tells a repetition, an operation with its payloads. Raises as `submit` does."""
        payloads = _frames_of(payload)
        check_command(command)
        operation = command.operation if isinstance(command, Keyed | Numbered) else None
        if operation is not None:
            check_payloads(operation, payloads)
        pending = Pending(give_up_ms or self.options.patience_ms)
        error = None if operation is None else self._too_large(operation, payloads)
        if error is not None:
            pending.fail(error)
        elif self._may_begin(pending):
            self._asks[Entry(command, payloads, pending)] = None
        return pending

    def greet(self) -> Pending:
        """Begin the session now, not with its first numbered command."""
        pending = Pending(self.options.patience_ms)
        if self._may_begin(pending):
            if self._is_open:
                pending.succeed(Done())
            else:
                self._greetings.append(pending)
        return pending

    def bye(self, *, for_good: bool = False) -> Pending:
        """End an anonymous session; a named one stays, unless it is `for_good`."""
        if (self.anonymous or for_good) and self.epoch and self.finished is None:
            return self.ask(Bye(self.session, self.epoch, for_good))
        pending = Pending(0.0)
        pending.succeed(Done())
        return pending

    def give_up(self, pending: Pending, error: errors.OnceMQError) -> None:
        """A caller does not want to wait any longer: it fails, and its number becomes void. What is in an outbox
        still happens."""
        if pending.done:
            return
        if self._backlog is not None and self._backlog.forget(pending):
            pending.fail(error)
            return
        for entry in [*self._asks, *self._flight]:
            if entry.pending is pending:
                self._give_up_entry(entry, error)
                return

    def _may_begin(self, pending: Pending) -> bool:
        if self.finished is not None:
            pending.fail(self.finished)
            return False
        if self._is_away:
            self._is_away = False
            self._timeouts = 0
        return True

    @property
    def is_idle(self) -> bool:
        """Nobody waits for anything of this core, and nothing is in its outbox."""
        return not (self._asks or self._greetings or self._flight.has_callers)

    @property
    def obstacle(self) -> errors.OnceMQError | None:
        """What stands in the way for the moment, if the broker has said."""
        return self._obstacle

    @property
    def term(self) -> int:
        """The highest of any broker that has answered; 0 where no standby can take over."""
        return self._rotation.term

    # What to send.

    def outgoing(self, now_ms: float) -> list[list[Frame]]:
        """Requests to send now, each a list of frames."""
        if self._is_away or self.finished is not None or self._rotation.is_leaving:
            return []
        requests: list[list[Frame]] = []
        if self._asks and not self._must_greet_first:
            self._send_asks(now_ms, requests)
        if self._is_open:
            if self._flight.has_work and now_ms >= self._pause_until_ms:
                self._send_numbered(now_ms, requests)
        elif self._hello is None and now_ms >= self._hello_not_before_ms and self._wants_session():
            self._send_hello(now_ms, requests)
        return requests

    def has_outgoing(self, now_ms: float) -> bool:
        """There may be something to send, after an answer came in."""
        return self._is_open and not self._is_away and self._flight.has_work and now_ms >= self._pause_until_ms

    def _wants_session(self) -> bool:
        return bool(self.epoch or self._greetings or len(self._flight) or (self._asks and self._must_greet_first))

    def _send_hello(self, now_ms: float, requests: list[list[Frame]]) -> None:
        is_probe = self._must_probe
        seen = self._flight.seen_below - 1
        sent = self._requests.record_hello(now_ms, self.options.timeout_ms, seen, is_probe=is_probe)
        self._hello = sent
        for pending in self._callers_of_session():
            self._start_clock(pending, now_ms)
        hello = Hello(self.session, self.epoch, self._nonce, self.options.window, self.anonymous)
        commands: tuple[Command, ...] = (hello,)
        if is_probe:
            # A hello with epoch 1 makes nothing: it is fenced, answered, or the session is unknown.
            commands = (Health(), Hello(self.session, 1, self._nonce, self.options.window))
        requests.append(encode_request(sent.request_id, commands))

    def _send_asks(self, now_ms: float, requests: list[list[Frame]]) -> None:
        """What brings messages goes alone, since it may wait, or bring many."""
        gathering = self._gathering()
        for entry in self._asks:
            if not entry.must_send or now_ms < entry.not_before_ms:
                continue
            if isinstance(entry.body, Get | GetAny | Read | Take):
                requests.append(self._asking_request((entry,), now_ms, entry.body.wait_ms))
            elif together := gathering.add(entry):
                requests.append(self._asking_request(together, now_ms))
        if gathering.entries:
            requests.append(self._asking_request(gathering.entries, now_ms))

    def _asking_request(self, entries: Sequence[Entry], now_ms: float, wait_ms: int = 0) -> list[Frame]:
        patience_ms = wait_ms + self.options.wait_slack_ms if wait_ms else self.options.timeout_ms
        sent = self._record(entries, now_ms, patience_ms, parked=wait_ms > 0)
        commands = [entry.body for entry in entries]
        payloads = [payload for entry in entries for payload in entry.payloads]
        return encode_request(sent.request_id, commands, payloads)  # type: ignore[arg-type]

    def _gathering(self) -> Gathering:
        return Gathering(self.options.request_commands_max, self.options.request_bytes_max)

    def _send_numbered(self, now_ms: float, requests: list[list[Frame]]) -> None:
        """Small commands share a request, in order of number; a large one has its own."""
        gathering = self._gathering()
        for entry in self._flight.take():
            if not self._is_sendable(now_ms, entry):
                break
            if together := gathering.add(entry):
                requests.append(self._numbered_request(together, now_ms))
        if gathering.entries and self.finished is None:
            requests.append(self._numbered_request(gathering.entries, now_ms))

    def _is_sendable(self, now_ms: float, entry: Entry) -> bool:
        """What is too large was submitted before the broker said so: it is refused here, and sent as a void."""
        if not entry.payloads:
            return True
        error = self._too_large(entry.body, entry.payloads)  # type: ignore[arg-type]
        return error is None or self._void_refused(now_ms, entry, Refusal(error.code, error.text))

    def _numbered_request(self, entries: list[Entry], now_ms: float) -> list[Frame]:
        if self.recorder is not None:
            self.recorder.sending(self.session, entries)
        sent = self._record(entries, now_ms, self.options.timeout_ms)
        seen_below = self._flight.seen_below
        commands = [
            Numbered(self.session, self.epoch, entry.number, seen_below, entry.body)  # type: ignore[arg-type]
            for entry in entries
        ]
        payloads = [payload for entry in entries for payload in entry.payloads]
        return encode_request(sent.request_id, commands, payloads)

    def _record(self, entries: Sequence[Entry], now_ms: float, patience_ms: float, *, parked: bool = False) -> Sent:
        for entry in entries:
            if entry.request_ids:
                self.resends_count += 1
            if entry.pending is not None:
                self._start_clock(entry.pending, now_ms)
        return self._requests.record(entries, now_ms, patience_ms, parked=parked)

    @staticmethod
    def _start_clock(pending: Pending, now_ms: float) -> None:
        if pending.deadline_ms == 0.0:
            pending.deadline_ms = now_ms + pending.give_up_ms

    # Time.

    def next_deadline_ms(self) -> float:
        """When `check` or `outgoing` has something to do; infinite where nothing is awaited."""
        if self._is_away or self.finished is not None:
            return _NEVER
        if self._rotation.is_leaving:
            return self._rotation.leave_ms
        deadline_ms = self._requests.next_due_ms()
        for entry in self._asks:
            if entry.must_send and not self._must_greet_first:
                deadline_ms = min(deadline_ms, entry.not_before_ms)
        if self._is_open and self._flight.has_work:
            deadline_ms = min(deadline_ms, self._pause_until_ms)
        elif not self._is_open and self._hello is None and self._wants_session():
            deadline_ms = min(deadline_ms, self._hello_not_before_ms)
        return deadline_ms

    def check(self, now_ms: float) -> bool:
        """Look for what is overdue. True: open a new connection, to the next address."""
        if self._is_away or self.finished is not None:
            return False
        if self._rotation.is_due(now_ms):
            self._rotation.left(now_ms)
            return True
        if now_ms < self._requests.next_due_ms():
            return False
        overdue = self._requests.overdue(now_ms)
        if all(self._requests.is_lost_alone(sent) for sent in overdue):
            for sent in overdue:
                self._send_lost_again(sent)
            return False
        self._timeouts += 1
        self._rotation.lost(now_ms)
        self._disconnect()
        if self._timeouts >= self.options.tries:
            self._go_away()
        return True

    def _send_lost_again(self, sent: Sent) -> None:
        self._requests.lose(sent)
        if sent is self._hello:
            self._hello = None
        for entry in sent.entries:
            if entry.settled or entry.request_ids[-1] != sent.request_id:
                continue
            self._send_again(entry)

    def disconnected(self) -> None:
        """The shell has a new connection for reasons of its own: resume, and send again what is open."""
        if not self._is_away and self.finished is None:
            self._disconnect()

    def _move_on(self, now_ms: float, error: errors.Standby) -> None:
        self._obstacle = error
        self._disconnect()
        self._rotation.leave(now_ms)
        self._give_up_overdue(now_ms, error, [*self._asks, *self._flight])
        # Nobody waits: then there is no need to look for the active one before somebody does.
        self._is_away = self.is_idle

    def _disconnect(self) -> None:
        self._requests.abandon()
        self._is_open = False
        self._hello = None
        self._hello_not_before_ms = 0.0
        for entry in self._asks:
            entry.must_send = True
            entry.not_before_ms = 0.0

    def _go_away(self) -> None:
        seconds = self.options.timeout_ms * self.options.tries / 1000
        tries = "1 try" if self.options.tries == 1 else f"{self.options.tries} tries"
        self._lose_patience(errors.BrokerAway(f"no answer from {self.options.where} ({tries} in {seconds:g} s)"))

    def _lose_patience(self, error: errors.OnceMQError) -> None:
        """Who waits is told. While an outbox has something to send, the core goes on trying; else it rests until it
        is asked for something."""
        self._is_away = self._backlog is None or not len(self._flight)
        self._timeouts = 0
        self._fail_all(error)

    def _fail_all(self, error: errors.OnceMQError) -> None:
        greetings, self._greetings = self._greetings, []
        asks, self._asks = self._asks, {}
        for entry in asks:
            entry.settled = True
            self._requests.settled(entry)
        self._give_up_numbered(error)
        for pending in greetings:
            pending.fail(error)
        for entry in asks:
            if entry.pending is not None:
                entry.pending.fail(error)

    def _give_up_numbered(self, error: errors.OnceMQError) -> None:
        if self._backlog is None:
            self._flight.give_up(error)
            return
        everyone = self.finished is not None
        self._flight.let_go(error, everyone=everyone)
        self._backlog.let_go(error, everyone=everyone)


def _frames_of(payload: Payloads) -> tuple[Frame, ...]:
    if payload is None:
        return ()
    return payload if isinstance(payload, tuple) else (payload,)
