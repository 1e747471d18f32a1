"""The producer of a client: puts one message, many, or without waiting.

Messages of one topic are stored in the order of the calls, whichever of them is used: a put first freezes the topic's
open batch. A batch that is not full is sent after `linger_ms` by a periodic task (runtime/background.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from oncemq.client.core.commands.pending import Pending
from oncemq.client.core.validation import check_name
from oncemq.client.producer.batch_buffer import Batch, BatchBuffer, PendingMessage
from oncemq.client.producer.encoding import (
    NO_CLAIM,
    Headers,
    OneMessage,
    Times,
    Value,
    as_bytes,
    check_columns,
    columns_of,
    headers_as_bytes,
    make_put,
    times_of,
)
from oncemq.client.producer.receipt import Receipt, receipt_of
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Outside, Until, WouldWait
from oncemq.client.runtime.rpc import wait_for_reply
from oncemq.client.schemas.claims import KnownSchema, checked, claim_of
from oncemq.client.schemas.topic_schemas import STALE, TopicSchemas
from oncemq.protocol import errors
from oncemq.protocol.commands import Put
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
        topic = message.topic
        is_known = self.schemas.needs(topic, message.value)
        return self.schemas.retrying([topic], lambda: self._put(message), is_known=is_known)

    def _put(self, message: OneMessage) -> Flow[Receipt]:
        driver = self.driver
        driver.check_usable()
        operation, payload = message.make(*self.schemas.checked(message.topic, message.value))
        yield from self.schemas.wait(operation.topic)
        self.freeze_topic(operation.topic)
        reply = yield from wait_for_reply(driver, driver.core.submit(operation, payload))
        return receipt_of(operation.topic, expect(reply, PutReply))

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
        check_columns(values, keys, headers)
        times = times_of(ttl_s, delay_s)
        return self._put_many(topic, values, keys, headers, create, times)

    def _put_many(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Value | None] | None,
        headers: Iterable[Headers | None] | None,
        create: bool,
        times: Times,
    ) -> Flow[Receipt]:
        self.driver.check_usable()
        known = yield from self.schemas.ready(topic)
        batches = self.batches_of(topic, values, keys, headers, create, times, known)
        return (yield from self.put_batches(topic, batches))

    def batches_of(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Value | None] | None,
        headers: Iterable[Headers | None] | None,
        create: bool,
        times: Times,
        known: KnownSchema | None,
    ) -> Iterator[tuple[Put, bytes]]:
        """Return the batches of a `put_many`. Each is made, and its values are checked, when it is about to be sent."""
        claim = NO_CLAIM
        if known is not None and known.newest is not None and known.is_required:
            claim = known.claim
            values = (checked(topic, value, known)[0] for value in values)
        messages_max, bytes_max = max(_MANY_MESSAGES, self.batch_messages), max(_MANY_BYTES, self.batch_bytes)
        columns = columns_of(values, keys, headers, messages_max, bytes_max)
        return (make_put(topic, create, *chunk, times, claim) for chunk in columns)

    def put_batches(self, topic: str, batches: Iterator[tuple[Put, bytes]]) -> Flow[Receipt]:
        """Send batches, and wait until all are stored. Raises the first error; its notes say how many were stored."""
        pendings: list[Pending] = []
        try:
            while (batch := (yield Outside(partial(next, batches, None)))) is not None:
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
        pending = self.driver.core.submit(operation, payload, on_done=_OnReply(self, len(payload), keep_error=False))
        self._count(len(payload))
        self.driver.pump()
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
        a blocking client waits for it, an asyncio client raises Overloaded."""
        if self.schemas.needs(topic, value):
            self._wait_for_schema(topic)
        buffer = self.buffers.get(topic) or self.open_buffer(topic, bool(create))
        item = (
            checked(topic, value, buffer.known or self.schemas.find(topic))[0],
            None if key is None else as_bytes(key),
            None if headers is None else headers_as_bytes(headers),
            bool(create),
            times_of(ttl_s, delay_s),
        )
        handle = buffer.add_item(self._handle_type, item)
        if buffer.size >= self.batch_bytes or not 1 < len(buffer.handles) < self.batch_messages:
            self.check_buffer(buffer)
        return handle  # type: ignore[return-value]

    def _wait_for_schema(self, topic: str) -> None:
        try:
            self.driver.run_now(self.schemas.ready(topic))
        except WouldWait:
            self.schemas.start(topic)
            text = f"the schema of '{topic}' is being looked up: await put() for the first message, or put it again"
            raise errors.Overloaded(text) from None

    def open_buffer(self, topic: str, create: bool) -> BatchBuffer:
        """Create a topic's buffer. Raises NameInvalid."""
        check_name(topic, "a topic's name")
        return self.driver.run_now(self._open_buffer(topic, create))

    def _open_buffer(self, topic: str, create: bool) -> Flow[BatchBuffer]:
        self.driver.check_usable()
        # Now, not with the first message: of two threads, each may take the other's message for the first.
        self._background.add(self)
        if len(self.buffers) >= _BUFFERS_MAX:
            self.freeze_all()
            self._former_buffers, self.buffers = self.buffers, {}
        yield from ()
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
        """A topic was looked up: from now on its values are checked when they are put, in another buffer. What is in
        the present one is checked when its batches are made, also what a thread is about to append to it."""
        buffer = self.buffers.get(topic)
        if buffer is None:
            return
        if known.is_required or buffer.known is not None:
            if buffer.handles:
                self._freeze(buffer)
            self._former_buffers[topic] = buffer
            successor = self.buffers[topic] = BatchBuffer(self, topic, buffer.create)
            successor.known = known if known.is_required else None
        elif buffer.handles and self._is_full(buffer):
            self._freeze(buffer)

    def check_buffer(self, buffer: BatchBuffer) -> None:
        """Send a buffer that is full, or note when its first message came. A blocking client waits here while
        `buffer_bytes` are in flight; an asyncio client raises Overloaded, and the last message is removed again."""
        try:
            self.driver.run_now(self._check_buffer(buffer))
        except WouldWait:
            # Only on an event loop. Nothing else has run since: the last message is the caller's.
            buffer.remove_last()
            raise errors.Overloaded(
                f"{self.in_flight_bytes} bytes are unanswered, and buffer_bytes is {self._buffer_bytes};"
                " await flush(), then put it again"
            ) from None

    def _check_buffer(self, buffer: BatchBuffer) -> Flow[None]:
        self.driver.check_usable()
        # While this thread waited for the lock, others may have added messages: it need not be the first any more.
        if not self._is_full(buffer):
            if buffer.opened_ms == 0.0 or len(buffer.handles) <= 1:
                buffer.opened_ms = now_ms()
            self._background.wake(now_ms() + self._linger_ms)
        yield from self._wait_for_space()
        if buffer.size >= self._buffer_bytes:
            yield from self.schemas.wait(buffer.topic)
        if self._is_full(buffer):
            self._freeze(buffer)
            self.driver.pump()

    def _is_full(self, buffer: BatchBuffer) -> bool:
        return len(buffer.handles) >= self.batch_messages or buffer.size >= self.batch_bytes

    def _wait_for_space(self) -> Flow[None]:
        """Wait until less than `buffer_bytes` are in flight."""
        if self.in_flight_bytes >= self._buffer_bytes:
            yield Until(lambda: self.in_flight_bytes < self._buffer_bytes)

    def flush(self, timeout_s: float | None = None) -> Flow[None]:
        """Send all buffers, and wait for the replies. Raises the first error that no caller has got."""
        self.driver.check_usable()
        yield from self.schemas.wait_all()
        self.freeze_all()
        until_ms = None if timeout_s is None else now_ms() + timeout_s * 1000
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
            if isinstance(handle.batch, BatchBuffer):
                yield from self.schemas.wait(handle.batch.topic)
            if isinstance(handle.batch, BatchBuffer):
                self._freeze(handle.batch)
            until_ms = None if timeout_s is None else now_ms() + timeout_s * 1000
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
            # At most once per `linger_ms`, however many topics there are.
            due_ms = min(due_ms, max(oldest_ms, self._ran_ms) + self._linger_ms)
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
        """Number the messages in a topic's buffer: what is sent from now on comes after them."""
        buffer = self.buffers.get(topic)
        if buffer is not None and buffer.handles:
            self._freeze(buffer)

    def ready(self) -> Flow[None]:
        """Wait until the messages in all buffers can be numbered."""
        return self.schemas.wait_all()

    def freeze_all(self) -> None:
        """Number the messages in all buffers."""
        for buffer in self._waiting_buffers():
            self._freeze(buffer)

    def _freeze(self, buffer: BatchBuffer) -> None:
        """Make batches of a buffer and send them. While its topic is being looked up, it is left as it is, unless an
        outbox makes its messages durable now."""
        if self.schemas.is_awaited(buffer.topic) and not self.driver.core.has_outbox:
            return
        known = self.schemas.find(buffer.topic)
        for batch, parts in buffer.freeze(self.batch_bytes, self.batch_messages):
            try:
                claim = claim_of(buffer.topic, parts[1], known) if buffer.known is None else buffer.known.claim
                operation, payload = make_put(buffer.topic, *parts, claim)
                on_done = _OnReply(self, len(payload), keep_error=True, topic=buffer.topic)
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

    __slots__ = ("keep_error", "producer", "size", "topic")

    def __init__(self, producer: Producer[Any], size: int, *, keep_error: bool, topic: str = "") -> None:
        self.topic = topic
        self.producer = producer
        self.size = size
        self.keep_error = keep_error

    def __call__(self, pending: Pending) -> None:
        producer = self.producer
        producer.in_flight_bytes -= self.size
        producer.in_flight_batches -= 1
        if self.keep_error and pending.error is not None:
            producer.keep_error(pending)
        if isinstance(pending.error, STALE) and self.topic:
            producer.schemas.look_again(self.topic)


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
