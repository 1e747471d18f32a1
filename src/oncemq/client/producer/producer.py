"""Putting messages: one, many, or without waiting.

Order on one topic is the order of the calls, whichever of them is used: a put first freezes the topic's open
batch. Nothing is held back for long: background.py sees to that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

from oncemq.client.core.pending import Pending
from oncemq.client.core.validation import check_name
from oncemq.client.producer.batch_buffer import (
    Batch,
    Headers,
    Place,
    Stream,
    Times,
    Value,
    all_as_bytes,
    as_bytes,
    check_is_many,
    cuts,
    headers_as_bytes,
    make_one_put,
    make_put,
    times_of,
)
from oncemq.client.producer.receipt import Receipt, receipt_of
from oncemq.client.runtime.background import Background
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Outside, Until, WouldWait, method
from oncemq.client.runtime.rpc import Calling, check_reply, wait_for_reply
from oncemq.protocol import errors
from oncemq.protocol.commands import Put
from oncemq.protocol.replies import PutReply

#: A shell's handles.
H = TypeVar("H", bound=Place)
T = TypeVar("T")

#: A batch of `put_many`, at the most, unless the client was told to make larger ones.
_MANY_MESSAGES = 4000
_MANY_BYTES = 512 * 1024
#: What the first look at the values of `put_many` takes, to learn how large they are.
_MANY_FIRST = 16
#: Topics with a stream of their own at a time.
_STREAMS_MAX = 10_000
#: Errors that are kept for the next flush, which raises the first.
_ERRORS_MAX = 100
_NEVER = float("inf")


class Producing(Calling, Generic[H]):
    """The producer's half of a client."""

    _handle_type: type[H]
    _background: Background
    #: Runs a flow from plain code.
    _run_now: Callable[[Flow[Any]], Any]

    def __init__(self, *, batch_messages: int, batch_bytes: int, linger_ms: float, buffer_bytes: int) -> None:
        self._linger_ms = linger_ms
        self._streams: dict[str, Stream] = {}
        #: Some thread may still be about to append to one of these.
        self._former_streams: dict[str, Stream] = {}
        self._unanswered_batches = 0
        self._sender = _LingerTask(self)
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._unanswered_bytes = 0
        #: What nobody was told yet, in order.
        self._errors: list[errors.OnceMQError] = []

    # One message.

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
    ) -> Flow[Receipt]:
        """Store one message. When this returns, it is on the broker's disk.

        `ttl_s`: nobody gets it later than that. `delay_s`: nobody gets it earlier than that; it has no offset until
        then (-1), and survives a restart like any other.

        >>> client.put("orders", "one pizza", key="table-7", create=True).offset
        0
        """
        return self._put_one(*make_one_put(topic, value, key, headers, create, times_of(ttl_s, delay_s)))

    def _put_one(self, operation: Put, payload: bytes) -> Flow[Receipt]:
        driver = self._driver
        driver.check_usable()
        self._freeze_topic(operation.topic)
        reply = yield from wait_for_reply(driver, driver.core.submit(operation, payload))
        return receipt_of(operation.topic, check_reply(reply, PutReply, operation))

    # Many messages.

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
    ) -> Flow[Receipt]:
        """Store any number of messages, in order. When this returns, all are on the broker's disk.

        They are sent in batches; each of them is stored whole or not at all. If one is refused, the others may
        be stored nevertheless; the error's notes say how many were.

        >>> client.put_many("orders", ["one pizza", "two salads"]).count
        2
        """
        batches = self._batches_of(topic, values, keys, headers, create, times_of(ttl_s, delay_s))
        return self._put_batches(topic, batches)

    def _batches_of(
        self,
        topic: str,
        values: Iterable[Value],
        keys: Iterable[Value | None] | None,
        headers: Iterable[Headers | None] | None,
        create: bool,
        times: Times,
    ) -> Iterator[tuple[Put, bytes]]:
        """Made one by one, as they are sent."""
        check_is_many(values, "values")
        check_is_many(keys, "keys")
        return (make_put(topic, create, *chunk, times) for chunk in self._chunks(values, keys, headers))

    def _put_batches(self, topic: str, batches: Iterator[tuple[Put, bytes]]) -> Flow[Receipt]:
        pendings: list[Pending] = []
        try:
            while (batch := (yield Outside(partial(next, batches, None)))) is not None:
                pendings.append((yield from self._submit_batch(*batch)))
            for pending in pendings:
                yield Until(pending)
        except BaseException as error:
            if not isinstance(error, Exception):
                # Interrupted: what was not stored yet is not to be stored later by surprise.
                self._give_up_all(pendings)
            raise
        return _summary(topic, pendings)

    def _submit_batch(self, operation: Put, payload: bytes) -> Flow[Pending]:
        self._driver.check_usable()
        yield from self._wait_for_room()
        self._freeze_topic(operation.topic)
        on_done = self._counts_out(len(payload), keep_error=False)
        pending = self._driver.core.submit(operation, payload, on_done=on_done)
        self._count_in(len(payload))
        self._driver.pump()
        return pending

    def _give_up_all(self, pendings: Sequence[Pending]) -> None:
        for pending in pendings:
            self._driver.give_up(pending, errors.ClientClosed("the caller gave up"))

    def _chunks(
        self, values: Iterable[Value], keys: Iterable[Value | None] | None, headers: Iterable[Headers | None] | None
    ) -> Iterator[tuple[list[bytes], list[bytes | None] | None, list[Mapping[str, bytes] | None] | None]]:
        keys_left = None if keys is None else iter(keys)
        headers_left = None if headers is None else iter(headers)
        for chunk in self._value_chunks(values):
            count = len(chunk)
            chunk_keys = None
            if keys_left is not None:
                chunk_keys = [None if key is None else as_bytes(key) for key in islice(keys_left, count)]
                _check_length(chunk_keys, count, "keys")
            chunk_headers = None
            if headers_left is not None:
                entries = islice(headers_left, count)
                chunk_headers = [None if entry is None else headers_as_bytes(entry) for entry in entries]
                _check_length(chunk_headers, count, "headers")
            yield chunk, chunk_keys, chunk_headers  # type: ignore[misc]

    def _value_chunks(self, values: Iterable[Any]) -> Iterator[list[bytes]]:
        """Chunks of about the right size, learning from each how many messages the next may have."""
        values_left = iter(values)
        messages_max = max(_MANY_MESSAGES, self._batch_messages)
        bytes_max = max(_MANY_BYTES, self._batch_bytes)
        count = _MANY_FIRST
        while chunk := list(islice(values_left, count)):
            chunk = all_as_bytes(chunk)
            size = sum(map(len, chunk))
            fitting = max(1, bytes_max * len(chunk) // max(size, 1))
            count = min(fitting, count * 16, messages_max)
            if size <= 2 * bytes_max:
                yield chunk
                continue
            start = 0
            for stop in cuts(chunk, bytes_max):
                yield chunk[start:stop]
                start = stop

    # Without waiting.

    def put_nowait(
        self,
        topic: str,
        value: Value,
        key: Value | None = None,
        headers: Headers | None = None,
        create: bool = False,
        ttl_s: float | None = None,
        delay_s: float | None = None,
    ) -> H:
        """Store one message, together with others, without waiting for the answer.

        Waits only when `buffer_bytes` are unanswered; in asyncio it raises Overloaded then, and has taken nothing.
        `flush` waits for everything and raises the first error.

        >>> for line in file:
        ...     client.put_nowait("lines", line)
        >>> client.flush()
        """
        stream = self._streams.get(topic)
        if (
            stream is None
            or type(value) is not bytes
            or key is not None
            or headers is not None
            or create is not stream.create
            or ttl_s is not None
            or delay_s is not None
        ):
            return self._put_slowly(topic, value, key, headers, create, times_of(ttl_s, delay_s))
        handle = stream.handle_type(stream, value)
        handles = stream.handles
        handles.append(handle)
        stream.size = size = stream.size + len(value)
        if size >= self._batch_bytes or not 1 < len(handles) < self._batch_messages:
            self._attend(stream)
        return handle  # type: ignore[return-value]

    def _put_slowly(
        self, topic: str, value: Value, key: Value | None, headers: Headers | None, create: bool, times: Times
    ) -> H:
        item = (
            as_bytes(value),
            None if key is None else as_bytes(key),
            None if headers is None else headers_as_bytes(headers),
            bool(create),
            times,
        )
        stream = self._streams.get(topic) or self._begin_stream(topic, item[3])
        handle = stream.add_item(item)
        if stream.size >= self._batch_bytes or not 1 < len(stream.handles) < self._batch_messages:
            self._attend(stream)
        return handle  # type: ignore[return-value]

    def _begin_stream(self, topic: str, create: bool) -> Stream:
        check_name(topic, "a topic's name")
        stream: Stream = self._run_now(self._make_stream(topic, create))
        return stream

    def _make_stream(self, topic: str, create: bool) -> Flow[Stream]:
        self._driver.check_usable()
        # Now, not with the first message: two threads may each take the other's message for the first.
        self._background.add(self._sender)
        if len(self._streams) >= _STREAMS_MAX:
            self._freeze_all()
            self._former_streams, self._streams = self._streams, {}
        yield from ()
        return self._streams.setdefault(topic, Stream(self, topic, create, self._handle_type))

    def _attend(self, stream: Stream) -> None:
        """A stream got its first message, or is full."""
        try:
            self._run_now(self._look_after(stream))
        except WouldWait:
            # Only on an event loop. Nothing else has run since: the last message is the caller's.
            stream.take_back()
            raise errors.Overloaded(
                f"{self._unanswered_bytes} bytes are unanswered, and buffer_bytes is {self._buffer_bytes};"
                " await flush(), then put it again"
            ) from None

    def _look_after(self, stream: Stream) -> Flow[None]:
        self._driver.check_usable()
        # While this thread waited for the lock, others may have added theirs: it is not the first for ever.
        if not self._is_full(stream):
            if stream.opened_ms == 0.0 or len(stream.handles) <= 1:
                stream.opened_ms = now_ms()
            self._background.wake(now_ms() + self._linger_ms)
        yield from self._wait_for_room()
        if self._is_full(stream):
            self._freeze(stream)
            self._driver.pump()

    def _waiting_streams(self) -> list[Stream]:
        # Lists first: the background thread looks at them without the lock.
        streams = [*list(self._former_streams.values()), *list(self._streams.values())]
        return [stream for stream in streams if stream.handles]

    def _is_full(self, stream: Stream) -> bool:
        return len(stream.handles) >= self._batch_messages or stream.size >= self._batch_bytes

    @method
    def flush(self, timeout_s: float | None = None) -> Flow[None]:
        """Wait until everything that was put is answered. Raises the first error since the last flush, unless a
        handle's `result` has raised it before."""
        return self._flush(timeout_s)

    def _flush(self, timeout_s: float | None = None) -> Flow[None]:
        self._driver.check_usable()
        self._freeze_all()
        until_ms = None if timeout_s is None else now_ms() + timeout_s * 1000
        if not (yield Until(lambda: self._unanswered_batches == 0, until_ms)):
            raise TimeoutError(f"{self._unanswered_batches} batches are not answered after {timeout_s} s")
        found, self._errors = self._errors, []
        if found:
            raise found[0]

    # Batches.

    def _freeze_topic(self, topic: str) -> None:
        stream = self._streams.get(topic)
        if stream is not None and stream.handles:
            self._freeze(stream)

    def _freeze_all(self) -> None:
        for stream in self._waiting_streams():
            self._freeze(stream)

    def _freeze(self, stream: Stream) -> None:
        for batch, parts in stream.freeze(self._batch_bytes):
            try:
                operation, payload = make_put(stream.topic, *parts)
                on_done = self._counts_out(len(payload))
                batch.pending = self._driver.core.submit(operation, payload, on_done=on_done)
            except Exception as error:
                # The callers are gone; theirs is the batch that fails, and no other.
                batch.pending = self._failed(error)
            else:
                self._count_in(len(payload))

    def _failed(self, error: Exception) -> Pending:
        self._count_in(0)
        pending = Pending(0.0, self._counts_out(0))
        if isinstance(error, OverflowError | struct.error | MemoryError):
            pending.fail(errors.TooLarge(f"a batch can't be made: {error}"))
        elif isinstance(error, errors.OnceMQError):
            pending.fail(error)
        else:
            pending.fail(errors.Malformed(f"a batch can't be made: {error}"))
        return pending

    def _count_in(self, size: int) -> None:
        self._unanswered_bytes += size
        self._unanswered_batches += 1

    def _counts_out(self, size: int, *, keep_error: bool = True) -> _CountOut:
        return _CountOut(self, size, keep_error)

    def _wait_for_room(self) -> Flow[None]:
        if self._unanswered_bytes >= self._buffer_bytes:
            yield Until(lambda: self._unanswered_bytes < self._buffer_bytes)

    def _result_of(self, handle: Place, timeout_s: float | None) -> Flow[Receipt]:
        """Others wait for the same batch: who is interrupted gives nothing up."""
        if not handle.done():
            self._driver.check_usable()
            if isinstance(handle.batch, Stream):
                self._freeze(handle.batch)
            assert isinstance(handle.batch, Batch)
            assert handle.batch.pending is not None
            until_ms = None if timeout_s is None else now_ms() + timeout_s * 1000
            if not (yield Until(handle.batch.pending, until_ms)):
                raise TimeoutError(f"no answer after {timeout_s} s")
        assert isinstance(handle.batch, Batch)
        assert handle.batch.pending is not None
        self._forget_error(handle.batch.pending.error)
        return handle._receipt()

    def _keep_error(self, pending: Pending) -> None:
        error = pending.error
        # One error may have met many batches.
        if error is not None and len(self._errors) < _ERRORS_MAX and not (self._errors and self._errors[-1] is error):
            self._errors.append(error)

    def _forget_error(self, error: errors.OnceMQError | None) -> None:
        if error is not None:
            self._errors = [kept for kept in self._errors if kept is not error]


class _LingerTask:
    """Sends batches that have lingered, and receives replies that nobody waits for."""

    def __init__(self, producing: Producing[Any]) -> None:
        self._producing = producing
        self._ran_ms = 0.0

    @property
    def due_ms(self) -> float:
        producing = self._producing
        linger_ms = producing._linger_ms
        due_ms = _NEVER
        if producing._unanswered_batches and not producing._driver.receives_alone:
            due_ms = producing._driver.pumped_ms + linger_ms
        if waiting := producing._waiting_streams():
            oldest_ms = min(stream.opened_ms for stream in waiting)
            # Once per `linger_ms`, however many topics there are.
            due_ms = min(due_ms, max(oldest_ms, self._ran_ms) + linger_ms)
        return due_ms

    def run(self) -> None:
        producing = self._producing
        self._ran_ms = at_ms = now_ms()
        for stream in producing._waiting_streams():
            if stream.opened_ms == 0.0:
                # No thread took its message for the first one: its time begins now.
                stream.opened_ms = at_ms
            elif stream.opened_ms + producing._linger_ms <= at_ms:
                producing._freeze(stream)


class _CountOut:
    """Called when a batch is answered."""

    __slots__ = ("keep_error", "producing", "size")

    def __init__(self, producing: Producing[Any], size: int, keep_error: bool) -> None:
        self.producing = producing
        self.size = size
        self.keep_error = keep_error

    def __call__(self, pending: Pending) -> None:
        producing = self.producing
        producing._unanswered_bytes -= self.size
        producing._unanswered_batches -= 1
        if self.keep_error and pending.error is not None:
            producing._keep_error(pending)


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


def _check_length(found: Sequence[object], count: int, what: str) -> None:
    if len(found) != count:
        raise ValueError(f"put_many got fewer {what} than values")
