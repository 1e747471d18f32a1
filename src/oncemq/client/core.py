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
are final; but an anonymous session that expired with nothing in doubt begins anew, under another name. Numbered
commands that were given up go on as `Void` under the same number, so that what a caller was told had failed does
not happen later by surprise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oncemq import errors
from oncemq.client.answers import Answers
from oncemq.client.checking import check_command, check_operation
from oncemq.client.flight import Flight
from oncemq.client.options import Options
from oncemq.client.pending import Entry, Pending, Sent
from oncemq.client.requests import Requests
from oncemq.engine.commands import Bye, Command, Get, Hello, Numbered, Operation, Put, Read, Stage
from oncemq.engine.replies import Done
from oncemq.wire.frames import Frame, encode_request

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
    ) -> None:
        """`renew` gives an anonymous session another name and nonce, for when the broker has let it expire."""
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
        self._nonce = nonce
        self._renew = renew
        self._flight = Flight(self.options.window)
        self._requests = Requests()
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

    # What a shell wants done.

    def submit(
        self,
        operation: Operation,
        payload: Frame | None = None,
        *,
        give_up_ms: float = 0.0,
        on_done: Callable[[Pending], None] | None = None,
    ) -> Pending:
        """A numbered operation: it happens once, in the order of these calls.

        Raises TypeError, NameInvalid or Malformed for what can't be sent at all."""
        check_operation(operation)
        pending = Pending(give_up_ms or self.options.patience_ms, on_done)
        if payload is not None and 0 < self.batch_bytes_max < len(payload):
            # The broker would not even receive it.
            pending.fail(self._too_large(operation, len(payload)))
        elif self._may_begin(pending):
            self._flight.add(Entry(operation, payload, pending))
        return pending

    def _too_large(self, operation: Operation, size: int) -> errors.TooLarge:
        what = "message" if isinstance(operation, Put | Stage) and operation.envelope.count == 1 else "batch"
        return errors.TooLarge(f"a {what} of {size} bytes; this broker takes up to {self.batch_bytes_max}")

    def ask(self, command: Command, *, give_up_ms: float = 0.0) -> Pending:
        """A command that repeating can't harm: get, ack, read, lists, health. Raises as `submit` does."""
        check_command(command)
        pending = Pending(give_up_ms or self.options.patience_ms)
        if self._may_begin(pending):
            self._asks[Entry(command, None, pending)] = None
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

    def bye(self) -> Pending:
        """End an anonymous session; a named one stays."""
        if self.anonymous and self.epoch and self.finished is None:
            return self.ask(Bye(self.session, self.epoch))
        pending = Pending(0.0)
        pending.succeed(Done())
        return pending

    def give_up(self, pending: Pending, error: errors.OnceMQError) -> None:
        """A caller does not want to wait any longer: it fails, and its number becomes void."""
        if pending.done:
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
        """Nobody waits for anything of this core."""
        return not (self._asks or self._greetings or self._flight.has_callers)

    # What to send.

    def outgoing(self, now_ms: float) -> list[list[Frame]]:
        """Requests to send now, each a list of frames."""
        if self._is_away or self.finished is not None:
            return []
        requests: list[list[Frame]] = []
        if self._asks:
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
        return bool(self.epoch or self._greetings or len(self._flight))

    def _send_hello(self, now_ms: float, requests: list[list[Frame]]) -> None:
        sent = self._requests.record_hello(now_ms, self.options.timeout_ms, self._flight.seen_below - 1)
        self._hello = sent
        for pending in self._callers_of_session():
            self._start_clock(pending, now_ms)
        hello = Hello(self.session, self.epoch, self._nonce, self.options.window, self.anonymous)
        requests.append(encode_request(sent.request_id, (hello,)))

    def _send_asks(self, now_ms: float, requests: list[list[Frame]]) -> None:
        for entry in self._asks:
            if not entry.must_send or now_ms < entry.not_before_ms:
                continue
            command = entry.body
            wait_ms = command.wait_ms if isinstance(command, Get | Read) else 0
            patience_ms = wait_ms + self.options.wait_slack_ms if wait_ms else self.options.timeout_ms
            sent = self._record((entry,), now_ms, patience_ms, parked=wait_ms > 0)
            requests.append(encode_request(sent.request_id, (command,)))  # type: ignore[arg-type]

    def _send_numbered(self, now_ms: float, requests: list[list[Frame]]) -> None:
        """Small commands share a request, in order of number; a large one has its own."""
        together: list[Entry] = []
        size = 0
        for entry in self._flight.take():
            added = entry.payload_bytes
            if together and (
                entry.goes_alone
                or together[-1].goes_alone
                or size + added > self.options.request_bytes_max
                or len(together) >= self.options.request_commands_max
            ):
                requests.append(self._numbered_request(together, now_ms))
                together, size = [], 0
            together.append(entry)
            size += added
        if together:
            requests.append(self._numbered_request(together, now_ms))

    def _numbered_request(self, entries: list[Entry], now_ms: float) -> list[Frame]:
        sent = self._record(entries, now_ms, self.options.timeout_ms)
        seen_below = self._flight.seen_below
        commands = [
            Numbered(self.session, self.epoch, entry.number, seen_below, entry.body)  # type: ignore[arg-type]
            for entry in entries
        ]
        payloads = [entry.payload for entry in entries if entry.payload is not None]
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
        deadline_ms = self._requests.next_due_ms()
        for entry in self._asks:
            if entry.must_send:
                deadline_ms = min(deadline_ms, entry.not_before_ms)
        if self._is_open and self._flight.has_work:
            deadline_ms = min(deadline_ms, self._pause_until_ms)
        elif not self._is_open and self._hello is None and self._wants_session():
            deadline_ms = min(deadline_ms, self._hello_not_before_ms)
        return deadline_ms

    def check(self, now_ms: float) -> bool:
        """Look for what is overdue. True: open a new connection, to the next address."""
        if self._is_away or self.finished is not None or now_ms < self._requests.next_due_ms():
            return False
        overdue = self._requests.overdue(now_ms)
        if all(self._requests.is_lost_alone(sent) for sent in overdue):
            for sent in overdue:
                self._send_lost_again(sent)
            return False
        self._timeouts += 1
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
            if entry.number:
                self._flight.send_again(entry)
            else:
                entry.must_send = True

    def disconnected(self) -> None:
        """The shell has a new connection for reasons of its own: resume, and send again what is open."""
        if not self._is_away and self.finished is None:
            self._disconnect()

    def _disconnect(self) -> None:
        self._requests.abandon()
        self._is_open = False
        self._hello = None
        self._hello_not_before_ms = 0.0
        for entry in self._asks:
            entry.must_send = True
            entry.not_before_ms = 0.0

    def _go_away(self) -> None:
        self._is_away = True
        seconds = self.options.timeout_ms * self.options.tries / 1000
        tries = "1 try" if self.options.tries == 1 else f"{self.options.tries} tries"
        self._fail_all(errors.BrokerAway(f"no answer from {self.options.where} ({tries} in {seconds:g} s)"))

    def _fail_all(self, error: errors.OnceMQError) -> None:
        greetings, self._greetings = self._greetings, []
        asks, self._asks = self._asks, {}
        for entry in asks:
            entry.settled = True
            self._requests.settled(entry)
        self._flight.give_up(error)
        for pending in greetings:
            pending.fail(error)
        for entry in asks:
            if entry.pending is not None:
                entry.pending.fail(error)
