"""A client with an outbox: what is put is on this machine's disk when `put` returns, and reaches the broker by itself,
once and in order, whenever that is there; if this process dies before, by the next one that opens the outbox.

Every numbered operation goes through the outbox (contract.py), a subscribe or a transaction too. Only their
callers wait for the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from oncemq.client.context import ClientContext
from oncemq.client.core.core import Payloads
from oncemq.client.core.pending import Pending, again
from oncemq.client.outbox.contract import OutboxRefusal
from oncemq.client.outbox.file import OutboxFile
from oncemq.client.producer.batch_buffer import Headers, Value, make_one_put, times_of
from oncemq.client.producer.receipt import Receipt, receipt_of
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Outside, Until, method
from oncemq.client.runtime.rpc import wait_for_reply
from oncemq.protocol import errors
from oncemq.protocol.commands import Operation, Put
from oncemq.protocol.replies import PutReply, Reply

if TYPE_CHECKING:
    from oncemq.client.connection import Connection

    Base = Connection[Any, Any, Any]
else:
    Base = object

log = logging.getLogger("oncemq.client")

#: What is put together is written with one sync, up to so many batches.
_TOGETHER_MAX = 16
#: How often answers are looked for when nobody calls: while they come, and while the broker is away.
_LOOK_MS = 5.0
_LOOK_AWAY_MS = 50.0
#: At close, what is left is given so long to leave; then it stays for the next process.
_LEAVE_MS = 1000.0
_NEVER = float("inf")


class Ticket(msgspec.Struct, frozen=True):
    """What was put into an outbox: its numbers there, and what has become of it.

    >>> ticket = client.put("orders", "one pizza")
    >>> client.stored(ticket)
    True
    """

    topic: str
    #: Of its batches, in the outbox.
    numbers: tuple[int, ...]
    #: Messages.
    count: int
    _pendings: tuple[Pending, ...] = ()

    def __repr__(self) -> str:
        return f"Ticket({self.topic!r}, numbers={self.numbers}, count={self.count})"

    @property
    def receipts(self) -> list[Receipt]:
        """Of the batches that this process has seen stored."""
        replies = [pending.reply for pending in self._pendings]
        return [receipt_of(self.topic, reply) for reply in replies if isinstance(reply, PutReply)]


class _Sending:
    """A duty: there is something in the outbox, and nobody waits for it."""

    def __init__(self, client: Outboxing) -> None:
        self._client = client
        self.due_ms = 0.0

    def run(self) -> None:
        core = self._client._driver.core
        if core.is_idle or core.finished is not None:
            self.due_ms = _NEVER
        else:
            self.due_ms = now_ms() + (_LOOK_AWAY_MS if core.obstacle is not None else _LOOK_MS)


class OutboxContext(ClientContext):
    """The context of a client with an outbox: a caller that gives up only stops waiting."""

    def __init__(self, context: ClientContext, outbox: OutboxFile, send_soon: Callable[[], None]) -> None:
        super().__init__(context.driver, context.background, context.freeze_buffers)
        self._outbox = outbox
        self._send_soon = send_soon

    def call_any(self, operation: Operation, payload: Payloads = None, *, give_up_ms: float = 0.0) -> Flow[Reply]:
        driver = self.driver
        driver.check_usable()
        self.freeze_buffers()
        give_up_ms = give_up_ms or driver.core.options.patience_ms
        pending = driver.core.submit(operation, payload, give_up_ms=give_up_ms)
        self._send_soon()
        try:
            return (yield from wait_for_reply(driver, pending))
        except (errors.BrokerAway, errors.NotNow) as error:
            error.add_note("It is kept in the outbox, and will be done when the broker can.")
            raise
        except errors.Refused:
            # The caller knows now.
            self._outbox.seen(pending.number)
            raise


class Outboxing(Base):
    """The part of a client with an outbox that differs from one without."""

    _outbox: OutboxFile
    #: At the end, the session ends for good if nothing is left in the outbox: then the file is of no more use.
    _is_passing = False
    _farewell: Pending | None = None

    def _begin_sending(self, outbox: OutboxFile) -> None:
        self._outbox = outbox
        self._context = OutboxContext(self._context, outbox, self._send_soon)
        self._sending = _Sending(self)
        self._take_on(self._sending)

    # Putting.

    @method
    def put(
        self,
        topic: str,
        value: Value,
        *,
        key: Value | None = None,
        headers: Headers | None = None,
        create: bool = False,
        ttl_s: float | None = None,
        delay_s: float | None = None,
    ) -> Flow[Ticket]:
        """Store one message. When this returns, it is on this machine's disk; it reaches the broker by itself.

        >>> client.put("orders", "one pizza", create=True).numbers
        (1,)
        """
        batch = make_one_put(topic, value, key, headers, create, times_of(ttl_s, delay_s))
        return self._put_aside(topic, iter([batch]))

    @method
    def put_many(
        self,
        topic: str,
        values: Iterable[Value],
        *,
        keys: Iterable[Value | None] | None = None,
        headers: Iterable[Headers | None] | None = None,
        create: bool = False,
        ttl_s: float | None = None,
        delay_s: float | None = None,
    ) -> Flow[Ticket]:
        """Store any number of messages, in order. When this returns, all are on this machine's disk.

        >>> client.put_many("orders", ["one pizza", "two salads"]).count
        2
        """
        return self._put_aside(topic, self._batches_of(topic, values, keys, headers, create, times_of(ttl_s, delay_s)))

    def _put_aside(self, topic: str, batches: Iterator[tuple[Put, bytes]]) -> Flow[Ticket]:
        self._driver.check_usable()
        self._freeze_topic(topic)
        pendings: list[Pending] = []
        count = 0
        try:
            while together := (yield Outside(lambda: list(islice(batches, _TOGETHER_MAX)))):
                self._driver.check_usable()
                pendings += self._append(together)
                count += sum(put.envelope.count for put, _ in together)
                if len(together) < _TOGETHER_MAX:
                    break
        except Exception as error:
            if pendings:
                error.add_note(f"{count} messages before are kept, as {pendings[0].number} to {pendings[-1].number}.")
            raise
        return Ticket(topic, tuple(pending.number for pending in pendings), count, tuple(pendings))

    def _append(self, together: list[tuple[Put, bytes]]) -> list[Pending]:
        """All of it is kept, or none."""
        core = self._driver.core
        for put, payload in together:
            if 0 < core.batch_bytes_max < len(payload):
                text = f"{len(payload)} bytes for '{put.topic}'; this broker takes up to {core.batch_bytes_max}"
                raise errors.TooLarge(text)
        try:
            pendings = core.submit_all([(put, (payload,)) for put, payload in together])
        finally:
            if core.finished is not None:
                # Others may wait for what will not come.
                self._driver.wake_waiters()
        self._raise_if_finished()
        self._send_soon()
        try:
            self._driver.pump()
        except errors.OnceMQError as error:
            # It is kept: whatever is wrong with the broker, a caller who heard of it would put it again.
            log.warning("%s", error)
        return pendings

    def _send_soon(self) -> None:
        if self._sending.due_ms == _NEVER:
            self._sending.due_ms = now_ms() + _LOOK_MS
            self._take_on(self._sending)

    def _raise_if_finished(self) -> None:
        finished = self._driver.core.finished
        if finished is not None:
            raise again(finished)

    # What has become of it.

    @property
    def pending(self) -> int:
        """Operations in the outbox that the broker has not decided, as far as is known here."""
        return self._outbox.pending_count

    @method
    def stored(self, ticket: Ticket | int) -> Flow[bool]:
        """Whether the broker has all of it on its disk. Raises what it was refused with. A number of an earlier
        process is as good as a ticket.

        >>> client.stored(ticket)
        True
        """
        yield from ()
        self._driver.check_usable()
        self._driver.pump()
        if isinstance(ticket, Ticket):
            for pending in ticket._pendings:
                if pending.error is not None:
                    raise again(pending.error)
        numbers = (ticket,) if isinstance(ticket, int) else ticket.numbers
        for refusal in self._outbox.refusals() if self._outbox.refusals_count else ():
            if refusal.number in numbers:
                raise errors.from_code(refusal.code, refusal.text)
        return not any(self._is_pending(number) for number in numbers)

    def _is_pending(self, number: int) -> bool:
        if not 1 <= number < self._outbox.next_number:
            raise ValueError(f"number {number} was not given out by this outbox")
        kept = self._outbox.entries(number, 1, 0)
        return bool(kept) and kept[0].number == number

    @method
    def refusals(self) -> Flow[list[OutboxRefusal]]:
        """What the broker has refused, whole; kept, also over restarts, until `seen` says that you know.

        >>> for refusal in client.refusals():
        ...     log.error("%s: %s", refusal.code, refusal.text)
        ...     client.seen(refusal)
        """
        yield from ()
        self._driver.check_usable()
        return list(self._outbox.refusals())

    @method
    def seen(self, refusal: OutboxRefusal | int) -> Flow[None]:
        """You know of this refusal: it is forgotten."""
        yield from ()
        self._driver.check_usable()
        self._outbox.seen(refusal if isinstance(refusal, int) else refusal.number)

    def _flush(self, timeout_s: float | None = None) -> Flow[None]:
        """Wait until the broker has decided everything. Raises the first refusal that is not `seen`."""
        self._driver.check_usable()
        self._freeze_all()
        until_ms = None if timeout_s is None else now_ms() + timeout_s * 1000
        core = self._driver.core
        if not (yield Until(lambda: self.pending == 0 or core.finished is not None, until_ms)):
            why = f": {core.obstacle}" if core.obstacle is not None else ""
            left = "1 operation is" if self.pending == 1 else f"{self.pending} operations are"
            raise TimeoutError(f"{left} in the outbox after {timeout_s} s{why}")
        self._raise_if_finished()
        self._raise_unkept()
        for refusal in self._outbox.refusals() if self._outbox.refusals_count else ():
            error = errors.from_code(refusal.code, refusal.text)
            error.add_note(f"It is number {refusal.number} of the outbox, and kept there until client.seen(…).")
            raise error

    def _keep_error(self, pending: Pending) -> None:
        """Only of what did not get into the outbox: refusals of the rest are there."""
        if not pending.number:
            super()._keep_error(pending)

    def _raise_unkept(self) -> None:
        found, self._errors = self._errors, []
        if found:
            raise found[0]

    def _wait_for_room(self) -> Flow[None]:
        """What is in the outbox takes no room in memory."""
        yield from ()

    # The beginning and the end.

    @method
    def _connected(self) -> Flow[None]:
        """For those who want to know that the broker is there, and that it is the right one."""
        pending = self._driver.core.greet()
        yield pending
        self._raise_if_finished()
        pending.result()

    def _finish_work(self, clean: bool) -> Flow[None]:
        """What is left in the outbox is safe there."""
        failures: list[errors.OnceMQError] = []
        for subscription in list(self._subscriptions):
            try:
                yield from subscription._close(clean)
            except errors.OnceMQError as error:
                failures.append(error)
        self._freeze_all()
        core = self._driver.core
        yield Until(lambda: self.pending == 0 or core.finished is not None, now_ms() + _LEAVE_MS)
        if self.pending:
            log.info("%d operations stay in the outbox %s, for the next process", self.pending, self._outbox.path)
        if failures:
            raise failures[0]
        self._raise_unkept()

    def _bye(self) -> Pending:
        is_left = self.pending or self._outbox.refusals_count
        if not self._is_passing or is_left:
            return super()._bye()
        self._farewell = self._driver.core.bye(for_good=True)
        return self._farewell

    @property
    def _has_ended(self) -> bool:
        """The broker has forgotten the session."""
        return self._farewell is not None and self._farewell.done and self._farewell.error is None

    def _end(self) -> None:
        self._let_go(self._sending)
        super()._end()
        self._outbox.close()
