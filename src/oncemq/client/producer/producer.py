"""The producer of a client: puts one message, many, or without waiting.

Messages of one topic are stored in the order of the calls, whichever of them is used: a put first freezes the topic's
open batch. A batch that is not full is sent after `linger_ms` by a periodic task (runtime/background.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from oncemq.client.core.commands.pending import Pending
from oncemq.client.core.validation import check_name
from oncemq.client.producer.batch_buffer import Batch, BatchBuffer, PendingMessage
from oncemq.client.producer.encoding import (
    Headers,
    ManyMessages,
    OneMessage,
    Value,
    as_bytes,
    headers_as_bytes,
    make_put,
    many_messages,
    times_of,
)
from oncemq.client.producer.receipt import Receipt, receipt_of
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Outside, Until, WouldWait
from oncemq.client.runtime.rpc import wait_for_reply
from oncemq.client.schemas.claims import OUTDATED, KnownSchema, checked, claim_of
from oncemq.client.schemas.topic_schemas import STALE, TopicSchemas
from oncemq.protocol import errors
from oncemq.protocol.commands import Operation, Put
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import PutReply, expect

if TYPE_CHECKING:
    from oncemq.client.options import ConnectSettings
    from oncemq.client.runtime.background import Background
    from oncemq.client.runtime.driver import Driver

#: The handles of the blocking or of the asyncio client.
H = TypeVar("H", bound=PendingMessage)

#: `put_many` makes batches of at least this size, even if the client's limits are lower.
_MANY_MESSAGES = 4000
_MANY_BYTES = 512 * 1024
#: At most this many topics have a buffer at a time.
_BUFFERS_MAX = 10_000
#: At most this many errors are kept for the next flush, which raises the first.
_ERRORS_MAX = 100
#: Batches that have lingered are looked for at most this often.
_RUN_MS_MIN = 1.0
_NEVER = float("inf")


class Producer(Generic[H]):
    """Puts messages. It is also the periodic task that sends batches which have lingered."""

    def __init__(self, driver: Driver, background: Background, settings: ConnectSettings, handle_type: type[H]) -> None:
        self.driver = driver
        self.batch_messages = settings.batch_messages
        self.batch_bytes = settings.batch_bytes
        #: Open batches by topic.
        self.buffers: dict[str, BatchBuffer] = {}
        #: Batches, and their bytes, that were sent and not answered.
        self.in_flight_batches = 0
        self.in_flight_bytes = 0
        self._background = background
        self._linger_ms = settings.linger_ms
        self._buffer_bytes = settings.buffer_bytes
        self._handle_type = handle_type
        self.schemas = TopicSchemas(driver, self._schema_known)
        #: A thread may still be about to append to one of these.
        self._former_buffers: dict[str, BatchBuffer] = {}
        #: Errors that no caller has got yet, in order.
        self._errors: list[errors.OnceMQError] = []
        self._ran_ms = 0.0

    # Puts that wait.

    def put(self, message: OneMessage) -> Flow[Receipt]:
        """Send one message, and wait until it is stored."""
        return self.schemas.retrying([message.topic], lambda: self._put(message))

    def _put(self, message: OneMessage) -> Flow[Receipt]:
        driver, topic = self.driver, message.topic
        driver.check_usable()
        yield from self.schemas.wait(topic)
        operation, payload = message.make(*self.schemas.checked(topic, message.value))
        self.freeze_topic(topic)
        reply = yield from wait_for_reply(driver, driver.core.submit(operation, payload))
        return receipt_of(topic, expect(reply, PutReply))

    def put_many(
        self,
        topic: str,
        values: Iterable[object],
        keys: Iterable[Value | None] | None,
        headers: Iterable[Headers | None] | None,
        create: bool,
        ttl_s: float | None,
        delay_s: float | None,
    ) -> Flow[Receipt]:
        """Send messages in batches, and wait until all are stored."""
        return self._put_many(many_messages(topic, values, keys, headers, create, ttl_s, delay_s))

    def _put_many(self, messages: ManyMessages) -> Flow[Receipt]:
        self.driver.check_usable()
        topic = messages.topic
        yield from self.schemas.ready(topic)
        batches = self.batches_of(messages)
        return (yield from self._put_batches(topic, lambda: self._next_batch(topic, batches)))

    def batches_of(self, messages: ManyMessages) -> Iterator[tuple[Put, bytes]]:
        """Return the batches of a `put_many`. Each is made, and its values are checked, when it is about to be sent.
        After SchemaMismatch or SchemaNeeded the same one can be asked for again."""
        limits = max(_MANY_MESSAGES, self.batch_messages), max(_MANY_BYTES, self.batch_bytes)
        return messages.batches(partial(self.schemas.checked_all, messages.topic), limits)

    def _next_batch(self, topic: str, batches: Iterator[tuple[Put, bytes]]) -> Flow[tuple[Put, bytes] | None]:
        try:
            return (yield from _next_of(batches))
        except OUTDATED:
            if not (yield from self.schemas.has_changed(topic)):
                raise
        return (yield from _next_of(batches))

    def put_batches(self, topic: str, batches: Iterator[tuple[Put, bytes]]) -> Flow[Receipt]:
        """Send batches, and wait until all are stored. Raises the first error; its notes say how many were stored."""
        return self._put_batches(topic, lambda: _next_of(batches))

    def _put_batches(self, topic: str, next_batch: Callable[[], Flow[tuple[Put, bytes] | None]]) -> Flow[Receipt]:
        pendings: list[Pending] = []
        try:
            while (batch := (yield from next_batch())) is not None:
                pendings.append((yield from self._submit_batch(*batch)))
            for pending in pendings:
                yield Until(pending)
        except BaseException as error:
            if not isinstance(error, Exception):
                # Interrupted: what was not stored yet must not be stored later by surprise.
                for pending in pendings:
                    self.driver.give_up(pending, errors.ClientClosed("the caller gave up"))
            raise
        return _summary(topic, pendings)

    def _submit_batch(self, operation: Put, payload: bytes) -> Flow[Pending]:
        self.driver.check_usable()
        yield from self._wait_for_space()
        yield from self.schemas.wait(operation.topic)
        self.freeze_topic(operation.topic)
        on_done = _OnReply(self, len(payload), operation.topic, keep_error=False)
        pending = self.driver.core.submit(operation, payload, on_done=on_done)
        self._count(len(payload))
        self.driver.pump()
        return pending

    # Operations that nobody waits for.

    def wait_to_send(self) -> Flow[None]:
        """Wait until less than `buffer_bytes` are in flight, and the messages in all buffers can be numbered."""
        self.driver.check_usable()
        yield from self._wait_for_space()
        yield from self.ready()

    def send(self, operation: Operation, payloads: tuple[Frame, ...], topics: tuple[str, ...]) -> Pending:
        """Number an operation after all messages that were put before it. `topics` are those that it puts to."""
        self.freeze_all()
        size = sum(map(len, payloads))
        pending = self.driver.core.submit(
            operation, payloads or None, on_done=_OnReply(self, size, *topics, keep_error=False)
        )
        self._count(size)
        # The task receives the reply although no caller waits.
        self._background.add(self)
        return pending

    # Puts that do not wait.

    def put_nowait(
        self,
        topic: str,
        value: object,
        key: Value | None,
        headers: Headers | None,
        create: bool,
        ttl_s: float | None,
        delay_s: float | None,
    ) -> H:
        """Append a message of any kind to its topic's buffer. `Client.put_nowait` appends plain values itself, if the
        topic has no schema.

        A value is checked now if the schema is known, and otherwise when its batch is made. An object needs the schema:
        a blocking client waits for it, an asyncio client raises Overloaded. A blocking client also looks for a newer
        version if a value does not match; an asyncio client looks for it without waiting, for the next value."""
        rest = (
            None if key is None else as_bytes(key),
            None if headers is None else headers_as_bytes(headers),
            bool(create),
            times_of(ttl_s, delay_s),
        )
        buffer = self.buffers.get(topic) or self.open_buffer(topic, bool(create))
        try:
            raw = self._checked(buffer, value)
        except OUTDATED:
            if not self._look_again(topic):
                raise
            buffer = self.buffers.get(topic) or self.open_buffer(topic, bool(create))
            raw = self._checked(buffer, value)
        handle = buffer.add_item(self._handle_type, (raw, *rest))
        if self.buffers.get(topic) is not buffer:
            # The topic got another schema while this value was checked, and with it another buffer.
            self.driver.run_now(self._send_former(buffer))
        elif buffer.size >= self.batch_bytes or not 1 < len(buffer.handles) < self.batch_messages:
            self.check_buffer(buffer)
        return handle  # type: ignore[return-value]

    def _checked(self, buffer: BatchBuffer, value: object) -> bytes:
        return checked(buffer.topic, value, buffer.known or self.schemas.find(buffer.topic))[0]

    def _look_again(self, topic: str) -> bool:
        """Look a topic up, because a value does not match what is known. Return whether it has another schema."""
        known = self.schemas.find(topic)
        try:
            return self.driver.run_now(self.schemas.has_changed_soon(topic))
        except WouldWait:
            # An earlier lookup may have been answered meanwhile.
            found = self.schemas.find(topic)
            if found is not None:
                return known is None or not known.is_same(found)
            self.schemas.start(topic)
            text = f"the schema of '{topic}' is being looked up: await put() for the first message, or put it again"
            raise errors.Overloaded(text) from None

    def _send_former(self, buffer: BatchBuffer) -> Flow[None]:
        self.driver.check_usable()
        yield from self.schemas.wait(buffer.topic)
        self._freeze(buffer)
        self.driver.pump()

    def open_buffer(self, topic: str, create: bool) -> BatchBuffer:
        """Create a topic's buffer. Raises NameInvalid; on an event loop also Overloaded, if too many topics are being
        looked up."""
        check_name(topic, "a topic's name")
        try:
            return self.driver.run_now(self._open_buffer(topic, create))
        except WouldWait:
            text = f"the schemas of {_BUFFERS_MAX} topics are being looked up; await flush(), then put it again"
            raise errors.Overloaded(text) from None

    def _open_buffer(self, topic: str, create: bool) -> Flow[BatchBuffer]:
        self.driver.check_usable()
        # Now, not with the first message: of two threads, each may take the other's message for the first.
        self._background.add(self)
        if len(self.buffers) >= _BUFFERS_MAX:
            yield from self.ready()
        if len(self.buffers) >= _BUFFERS_MAX:
            self.freeze_all()
            self._former_buffers, self.buffers = self.buffers, {}
        buffer = self.buffers.setdefault(topic, BatchBuffer(self, topic, create))
        known = self.schemas.find(topic)
        if known is None:
            self.schemas.start(topic)
            self.driver.pump()
        elif known.is_required and not buffer.handles:
            buffer.known = known
        # The reply may have come already, and with it another buffer.
        return self.buffers.get(topic, buffer)

    def _schema_known(self, topic: str, known: KnownSchema) -> None:
        """A topic was looked up: if it has another schema than was known, values are checked against this one when
        they are put, in another buffer. What is in the present one is checked when its batches are made, also what a
        thread is about to append to it."""
        buffer = self.buffers.get(topic)
        if buffer is None:
            return
        if buffer.known is None and not known.is_required:
            is_same = True
        else:
            is_same = buffer.known is not None and known.is_required and buffer.known.is_same(known)
        if not is_same:
            self.freeze_topic(topic)
            self._former_buffers[topic] = buffer
            successor = self.buffers[topic] = BatchBuffer(self, topic, buffer.create)
            successor.known = known if known.is_required else None
        elif self._is_full(buffer):
            self._freeze(buffer)

    def check_buffer(self, buffer: BatchBuffer) -> None:
        """Send a buffer that is full, or note when its first message came. A blocking client waits here while
        `buffer_bytes` are in flight; an asyncio client raises Overloaded, and the last message is removed again."""
        try:
            self.driver.run_now(self._check_buffer(buffer))
        except WouldWait:
            # Only on an event loop. Nothing else has run since: the last message is the caller's.
            buffer.remove_last()
            unanswered = self.in_flight_bytes + self._held_bytes(buffer)
            text = f"{unanswered} bytes are unanswered, and buffer_bytes is {self._buffer_bytes}"
            raise errors.Overloaded(f"{text}; await flush(), then put it again") from None

    def _check_buffer(self, buffer: BatchBuffer) -> Flow[None]:
        self.driver.check_usable()
        # While this thread waited for the lock, others may have added messages: it need not be the first any more.
        if not self._is_full(buffer):
            if buffer.opened_ms == 0.0 or len(buffer.handles) <= 1:
                buffer.opened_ms = now_ms()
            self._background.wake(now_ms() + self._linger_ms)
        yield from self._wait_for_space()
        if self._is_full(buffer) and self._held_bytes(buffer) >= self._buffer_bytes:
            yield from self.schemas.wait(buffer.topic)
        if self._is_full(buffer):
            self._freeze(buffer)
            self.driver.pump()

    def _is_full(self, buffer: BatchBuffer) -> bool:
        return len(buffer.handles) >= self.batch_messages or buffer.size >= self.batch_bytes

    def _held_bytes(self, buffer: BatchBuffer) -> int:
        """Return the bytes in buffers that can't be sent, if this is one of them: their topics are being looked up."""
        if not self.schemas.is_awaited(buffer.topic):
            return 0
        return sum(each.size for each in self._waiting_buffers() if self.schemas.is_awaited(each.topic))

    def _wait_for_space(self) -> Flow[None]:
        """Wait until less than `buffer_bytes` are in flight."""
        if self.in_flight_bytes >= self._buffer_bytes:
            yield Until(lambda: self.in_flight_bytes < self._buffer_bytes)

    def flush(self, timeout_s: float | None = None) -> Flow[None]:
        """Send all buffers, and wait for the replies. Raises the first error that no caller has got."""
        self.driver.check_usable()
        until_ms = None if timeout_s is None else now_ms() + timeout_s * 1000
        if not (yield from self.schemas.wait_all(until_ms)):
            raise TimeoutError(f"the schemas of topics are still being looked up after {timeout_s} s")
        self.freeze_all()
        if not (yield Until(lambda: self.in_flight_batches == 0, until_ms)):
            raise TimeoutError(f"{self.in_flight_batches} batches are not answered after {timeout_s} s")
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the first error that no caller has got, and forget the others."""
        found, self._errors = self._errors, []
        if found:
            raise found[0]

    def result_of(self, handle: PendingMessage, timeout_s: float | None) -> Flow[Receipt]:
        """Wait for a message's receipt. A caller that is interrupted gives nothing up: others wait for the batch."""
        if not handle.done():
            self.driver.check_usable()
            until_ms = None if timeout_s is None else now_ms() + timeout_s * 1000
            topic = handle.batch.topic
            if isinstance(handle.batch, BatchBuffer) and not (yield from self.schemas.wait(topic, until_ms)):
                raise TimeoutError(f"the schema of '{topic}' is still being looked up after {timeout_s} s")
            if isinstance(handle.batch, BatchBuffer):
                self._freeze(handle.batch)
            if not (yield Until(_pending_of(handle), until_ms)):
                raise TimeoutError(f"no answer after {timeout_s} s")
        error = _pending_of(handle).error
        if error is not None:
            self._errors = [kept for kept in self._errors if kept is not error]
        return handle._receipt()

    # The periodic task.

    @property
    def due_ms(self) -> float:
        """When a batch has lingered, or replies are to be received that no caller waits for."""
        due_ms = _NEVER
        if self.in_flight_batches and not self.driver.receives_alone:
            due_ms = self.driver.pumped_ms + self._linger_ms
        if waiting := self._waiting_buffers():
            oldest_ms = min(buffer.opened_ms for buffer in waiting)
            # At most once per `linger_ms`, however many topics there are, and however long one is being looked up.
            due_ms = min(due_ms, max(oldest_ms + self._linger_ms, self._ran_ms + max(self._linger_ms, _RUN_MS_MIN)))
        return due_ms

    def run(self) -> None:
        """Send the batches that have lingered."""
        self._ran_ms = at_ms = now_ms()
        for buffer in self._waiting_buffers():
            if buffer.opened_ms == 0.0:
                # No thread took its message for the first one: its time starts now.
                buffer.opened_ms = at_ms
            elif buffer.opened_ms + self._linger_ms <= at_ms:
                self._freeze(buffer)

    def _waiting_buffers(self) -> list[BatchBuffer]:
        # Copies first: the background thread reads them without the lock.
        buffers = [*list(self._former_buffers.values()), *list(self.buffers.values())]
        return [buffer for buffer in buffers if buffer.handles]

    # Batches.

    def freeze_topic(self, topic: str) -> None:
        """Number the messages in a topic's buffers: what is sent from now on comes after them."""
        for buffers in (self._former_buffers, self.buffers):
            buffer = buffers.get(topic)
            if buffer is not None and buffer.handles:
                self._freeze(buffer)

    def is_plain(self, topic: str) -> bool:
        """Whether a value can be put to a topic as it is: it has no schema, as far as is known, and no message is in a
        buffer before it."""
        known = self.schemas.find(topic)
        if (known is not None and known.is_required) or self.schemas.is_awaited(topic):
            return False
        if not self.buffers and not self._former_buffers:
            return True
        buffers = (self._former_buffers.get(topic), self.buffers.get(topic))
        return not any(buffer is not None and buffer.handles for buffer in buffers)

    def ready(self) -> Flow[None]:
        """Wait until the messages in all buffers can be numbered. With an outbox, they can at any time."""
        if not self.driver.core.has_outbox:
            yield from self.schemas.wait_all()

    def freeze_all(self) -> None:
        """Number the messages in all buffers."""
        for buffer in self._waiting_buffers():
            self._freeze(buffer)

    def _freeze(self, buffer: BatchBuffer) -> None:
        """Make batches of a buffer and send them. While its topic is being looked up, it is left as it is, unless an
        outbox makes its messages durable now."""
        if self.schemas.is_awaited(buffer.topic) and not self.driver.core.has_outbox:
            return
        known, checked_by = self.schemas.find(buffer.topic), buffer.known
        if checked_by is not None and known is not None and known.topic_id != checked_by.topic_id:
            # The topic was deleted and created again.
            checked_by = None
        for batch, parts in buffer.freeze(self.batch_bytes, self.batch_messages):
            try:
                claim = checked_by.claim if checked_by is not None else claim_of(buffer.topic, parts[1], known)
                operation, payload = make_put(buffer.topic, *parts, claim)
                on_done = _OnReply(self, len(payload), buffer.topic, keep_error=True)
                batch.pending = self.driver.core.submit(operation, payload, on_done=on_done)
            except Exception as error:
                # The callers have returned: only this batch fails.
                batch.pending = self._failed(error)
            else:
                self._count(len(payload))

    def _failed(self, error: Exception) -> Pending:
        self._count(0)
        pending = Pending(0.0, _OnReply(self, 0, keep_error=True))
        if isinstance(error, OverflowError | struct.error | MemoryError):
            pending.fail(errors.TooLarge(f"a batch can't be made: {error}"))
        elif isinstance(error, errors.OnceMQError):
            pending.fail(error)
        else:
            pending.fail(errors.Malformed(f"a batch can't be made: {error}"))
        return pending

    def _count(self, size: int) -> None:
        self.in_flight_bytes += size
        self.in_flight_batches += 1

    def keep_error(self, pending: Pending) -> None:
        """Keep the error of a batch that no caller waits for, for the next flush."""
        error = pending.error
        # One error may have failed many batches.
        if error is not None and len(self._errors) < _ERRORS_MAX and not (self._errors and self._errors[-1] is error):
            self._errors.append(error)

    def discard(self) -> None:
        """Forget all buffers: the client was closed, or this is a forked child."""
        self.buffers = {}


class _OnReply:
    """Called when a batch is answered."""

    __slots__ = ("keep_error", "producer", "size", "topics")

    def __init__(self, producer: Producer[Any], size: int, *topics: str, keep_error: bool) -> None:
        self.topics = topics
        self.producer = producer
        self.size = size
        self.keep_error = keep_error

    def __call__(self, pending: Pending) -> None:
        producer = self.producer
        producer.in_flight_bytes -= self.size
        producer.in_flight_batches -= 1
        if self.keep_error and pending.error is not None:
            producer.keep_error(pending)
        if isinstance(pending.error, STALE):
            for topic in self.topics:
                producer.schemas.start(topic)


def _next_of(batches: Iterator[tuple[Put, bytes]]) -> Flow[tuple[Put, bytes] | None]:
    batch: tuple[Put, bytes] | None = yield Outside(partial(next, batches, None))
    return batch


def _pending_of(handle: PendingMessage) -> Pending:
    assert isinstance(handle.batch, Batch)
    assert handle.batch.pending is not None
    return handle.batch.pending


def _summary(topic: str, pendings: Sequence[Pending]) -> Receipt:
    stored = [pending.reply for pending in pendings if isinstance(pending.reply, PutReply)]
    count = sum(reply.count for reply in stored)
    for pending in pendings:
        if pending.error is not None:
            pending.error.add_note(f"{count} messages of this put_many were stored, in {len(stored)} batches.")
            raise pending.error
    if not stored:
        return Receipt(topic, 0, -1, 0, 0, 0, 0)
    subscriptions = min(reply.subscriptions for reply in stored)
    first, last = stored[0], stored[-1]
    return Receipt(topic, first.topic_id, first.first_offset, count, last.time_ms, subscriptions, len(stored))
