"""The producer of a client with an outbox.

What is put is on this machine's disk when `put` returns. It reaches the broker automatically, once and in order, as
soon as the broker can be reached; if this process dies first, the next one that opens the outbox sends it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from oncemq.client.core.commands.pending import Pending, again
from oncemq.client.producer.encoding import ManyMessages, OneMessage
from oncemq.client.producer.producer import H, Producer
from oncemq.client.producer.receipt import Receipt, receipt_of
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Outside, Until
from oncemq.client.schemas.claims import OUTDATED
from oncemq.protocol import errors
from oncemq.protocol.commands import Put
from oncemq.protocol.replies import PutReply

if TYPE_CHECKING:
    from oncemq.client.options import ConnectSettings
    from oncemq.client.outbox.contract import OutboxRefusal
    from oncemq.client.outbox.file import OutboxFile
    from oncemq.client.runtime.background import Background
    from oncemq.client.runtime.driver import Driver

log = logging.getLogger("oncemq.client")

#: At most this many batches are written with one sync.
_BATCHES_PER_SYNC = 16
#: How often replies are looked for when no caller waits: while they arrive, and while the broker is unreachable.
_CHECK_MS = 5.0
_CHECK_AWAY_MS = 50.0
_NEVER = float("inf")


class Ticket(msgspec.Struct, frozen=True):
    """What was put into an outbox: its numbers there, and whether it was stored since.

    >>> ticket = client.put("orders", "one pizza")
    >>> client.stored(ticket)
    True
    """

    topic: str
    #: The numbers of its batches in the outbox.
    numbers: tuple[int, ...]
    #: How many messages it holds.
    count: int
    _pendings: tuple[Pending, ...] = ()

    def __repr__(self) -> str:
        return f"Ticket({self.topic!r}, numbers={self.numbers}, count={self.count})"

    @property
    def receipts(self) -> list[Receipt]:
        """Receipts of the batches that were stored while this process ran."""
        replies = [pending.reply for pending in self._pendings]
        return [receipt_of(self.topic, reply) for reply in replies if isinstance(reply, PutReply)]


class _SendTask:
    """The periodic task of an outbox that is not empty. Each run of it is a pump, which sends and receives."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.due_ms = 0.0

    def run(self) -> None:
        core = self._driver.core
        if core.is_idle or core.finished is not None:
            self.due_ms = _NEVER
        else:
            self.due_ms = now_ms() + (_CHECK_AWAY_MS if core.obstacle is not None else _CHECK_MS)


class OutboxProducer(Producer[H]):
    """Puts messages into an outbox, and reports what became of them."""

    def __init__(
        self,
        driver: Driver,
        background: Background,
        settings: ConnectSettings,
        handle_type: type[H],
        outbox: OutboxFile,
    ) -> None:
        super().__init__(driver, background, settings, handle_type)
        self.outbox = outbox
        #: How many operations were refused before the schemas of topics were last in doubt.
        self._refused_count = 0
        self._send_task = _SendTask(driver)

    def start(self) -> None:
        """Start to send what an earlier process left in the outbox."""
        self._background.add(self._send_task)

    def stop(self) -> None:
        """Send nothing more."""
        self._background.remove(self._send_task)
        self.outbox.close()

    def send_soon(self) -> None:
        """Send what was added to the outbox, although no caller waits for it."""
        if self._send_task.due_ms == _NEVER:
            self._send_task.due_ms = now_ms() + _CHECK_MS
            self._background.add(self._send_task)

    # Puts.

    def put_one(self, message: OneMessage) -> Flow[Ticket]:
        """Write one message into the outbox. An object needs the schema of its topic, and therefore the broker."""
        return self.store_many(message.as_many())

    def store_many(self, messages: ManyMessages) -> Flow[Ticket]:
        """Write messages into the outbox, in batches."""
        self.driver.check_usable()
        if self.outbox.refused_count != self._refused_count:
            # Perhaps because of a schema that is out of date.
            self._refused_count = self.outbox.refused_count
            self.schemas.doubt_all()
        yield from self.schemas.ready_soon(messages.topic)
        return (yield from self._store(messages.topic, self.batches_of(messages)))

    def _store(self, topic: str, batches: Iterator[tuple[Put, bytes]]) -> Flow[Ticket]:
        """Write batches into the outbox. An error's notes say how many were written before it."""
        self.driver.check_usable()
        self.freeze_topic(topic)
        pendings: list[Pending] = []
        count = 0
        try:
            while together := (yield from self._take(topic, batches)):
                self.driver.check_usable()
                pendings += self._append(together)
                count += sum(put.envelope.count for put, _ in together)
                if len(together) < _BATCHES_PER_SYNC:
                    break
        except Exception as error:
            if pendings:
                error.add_note(f"{count} messages before are kept, as {pendings[0].number} to {pendings[-1].number}.")
            raise
        return Ticket(topic, tuple(pending.number for pending in pendings), count, tuple(pendings))

    def _take(self, topic: str, batches: Iterator[tuple[Put, bytes]]) -> Flow[list[tuple[Put, bytes]]]:
        """Return the next batches that are written together."""
        together: list[tuple[Put, bytes]] = []

        def take() -> None:
            # One at a time: if the next one fails, this one stays.
            for batch in islice(batches, _BATCHES_PER_SYNC - len(together)):
                together.append(batch)

        try:
            yield Outside(take)
        except OUTDATED:
            if not (yield from self.schemas.has_changed_soon(topic)):
                raise
            yield Outside(take)
        return together

    def _append(self, together: list[tuple[Put, bytes]]) -> list[Pending]:
        """Write all of it, or nothing."""
        core = self.driver.core
        for put, payload in together:
            if 0 < core.batch_bytes_max < len(payload):
                text = f"{len(payload)} bytes for '{put.topic}'; this broker takes up to {core.batch_bytes_max}"
                raise errors.TooLarge(text)
        try:
            pendings = core.submit_all([(put, (payload,)) for put, payload in together])
        finally:
            if core.finished is not None:
                # Other callers may wait for replies that will not come.
                self.driver.wake_waiters()
        self.raise_if_finished()
        self.send_soon()
        try:
            self.driver.pump()
        except errors.OnceMQError as error:
            # The messages are in the outbox. A caller that got an error of the broker would put them again.
            log.warning("%s", error)
        return pendings

    def raise_if_finished(self) -> None:
        """Raise the error that ended the session, if there is one."""
        finished = self.driver.core.finished
        if finished is not None:
            raise again(finished)

    # What became of them.

    def stored(self, ticket: Ticket | int) -> Flow[bool]:
        """Return whether the broker has stored all of it. Raises the error that it was refused with."""
        yield from ()
        self.driver.check_usable()
        self.driver.pump()
        if isinstance(ticket, Ticket):
            for pending in ticket._pendings:
                if pending.error is not None:
                    raise again(pending.error)
        numbers = (ticket,) if isinstance(ticket, int) else ticket.numbers
        for refusal in self.outbox.refusals() if self.outbox.refusals_count else ():
            if refusal.number in numbers:
                raise errors.from_code(refusal.code, refusal.text)
        return not any(self._is_pending(number) for number in numbers)

    def _is_pending(self, number: int) -> bool:
        if not 1 <= number < self.outbox.next_number:
            raise ValueError(f"this outbox never assigned number {number}")
        kept = self.outbox.entries(number, 1, 0)
        return bool(kept) and kept[0].number == number

    def refusals(self) -> Flow[list[OutboxRefusal]]:
        """Return what the broker has refused and the caller has not `seen`."""
        yield from ()
        self.driver.check_usable()
        return list(self.outbox.refusals())

    def seen(self, refusal: OutboxRefusal | int) -> Flow[None]:
        """Delete a refusal from the outbox."""
        yield from ()
        self.driver.check_usable()
        self.outbox.seen(refusal if isinstance(refusal, int) else refusal.number)

    def flush(self, timeout_s: float | None = None) -> Flow[None]:
        """Wait until the broker has decided everything. Raises the first refusal that is not `seen`."""
        self.driver.check_usable()
        if not (yield self.until_empty(None if timeout_s is None else timeout_s * 1000)):
            obstacle, left = self.driver.core.obstacle, self.outbox.pending_count
            why = f": {obstacle}" if obstacle is not None else ""
            what = "1 operation is" if left == 1 else f"{left} operations are"
            raise TimeoutError(f"{what} in the outbox after {timeout_s} s{why}")
        self.raise_if_finished()
        self.raise_error()
        for refusal in self.outbox.refusals() if self.outbox.refusals_count else ():
            error = errors.from_code(refusal.code, refusal.text)
            error.add_note(f"It is number {refusal.number} of the outbox, and kept there until client.seen(…).")
            raise error

    def until_empty(self, timeout_ms: float | None) -> Until:
        """Send all buffers. Returns the wait until the outbox is empty, or the session has ended."""
        self.freeze_all()
        core, outbox = self.driver.core, self.outbox
        until_ms = None if timeout_ms is None else now_ms() + timeout_ms
        return Until(lambda: outbox.pending_count == 0 or core.finished is not None, until_ms)

    def keep_error(self, pending: Pending) -> None:
        """Keep only errors of what did not get into the outbox: the outbox keeps the refusals of the rest."""
        if not pending.number:
            super().keep_error(pending)

    def _wait_for_space(self) -> Flow[None]:
        """Messages in the outbox take no memory."""
        yield from ()
