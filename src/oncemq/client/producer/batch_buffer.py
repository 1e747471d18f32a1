"""Messages that wait to be sent together, and their handles.

A handle is two fields and nothing else: a future for each of millions of messages would cost more than the
messages. It begins as the message's place in a stream and ends as its place in a batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from oncemq.client.core.pending import Pending
from oncemq.client.core.validation import check_headers, check_name
from oncemq.client.producer.receipt import Receipt
from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, encode_batch, key_hashes
from oncemq.protocol.commands import Envelope, Put
from oncemq.protocol.replies import PutReply

Value = bytes | str | bytearray | memoryview
Headers = Mapping[str, Value]


def as_bytes(value: Value) -> bytes:
    """Text becomes UTF-8; anything that is neither text nor bytes is a mistake."""
    if isinstance(value, bytes):
        return value if type(value) is bytes else bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"values, keys and headers are bytes or str, not {type(value).__name__}")


_ONLY_BYTES = {bytes}


def all_as_bytes(values: Iterable[Value]) -> list[bytes]:
    """The same for many, of which most are bytes already."""
    found: list[Any] = list(values)
    return found if set(map(type, found)) <= _ONLY_BYTES else [as_bytes(value) for value in found]


def headers_as_bytes(headers: Headers) -> dict[str, bytes]:
    """Raises TypeError, NameInvalid for a name that is not UTF-8, or TooLarge."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers are a mapping from str to bytes or str, not {type(headers).__name__}")
    for name in headers:
        check_name(name, "a header's name")
    found = {str.__str__(name): as_bytes(value) for name, value in headers.items()}
    check_headers(found)
    return found


def check_is_many(values: object, what: str) -> None:
    """Text and bytes can be iterated over, and are one value nevertheless."""
    if isinstance(values, str | bytes | bytearray | memoryview):
        raise TypeError(f"{what} are an iterable of bytes or str, not one {type(values).__name__}")


class Times(msgspec.Struct, frozen=True, gc=False):
    """How long messages live, and when they are due; 0 = for ever, and at once."""

    ttl_ms: int = 0
    due_ms: int = 0


NO_TIMES = Times()


def times_of(ttl_s: float | None, delay_s: float | None) -> Times:
    """Raises ValueError for a time that is not above 0."""
    if ttl_s is None and delay_s is None:
        return NO_TIMES
    for what, seconds in (("ttl_s", ttl_s), ("delay_s", delay_s)):
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ValueError(f"{what} is a number of seconds above 0, not {seconds}")
    ttl_ms = 0 if ttl_s is None else max(1, round(ttl_s * 1000))
    return Times(ttl_ms, 0 if delay_s is None else round((time.time() + delay_s) * 1000))


def make_put(
    topic: str,
    create: bool,
    values: list[bytes],
    keys: list[bytes | None] | None = None,
    headers: list[Mapping[str, bytes] | None] | None = None,
    times: Times = NO_TIMES,
) -> tuple[Put, bytes]:
    """The operation for a batch, and its payload."""
    payload = encode_batch(values, keys, headers)
    hashes = key_hashes(keys) if keys is not None else b""
    envelope = Envelope(len(values), len(payload), checksum(payload), times.ttl_ms, times.due_ms, hashes)
    return Put(topic, envelope, bool(create)), payload


def make_one_put(
    topic: str, value: Value, key: Value | None, headers: Headers | None, create: bool, times: Times
) -> tuple[Put, bytes]:
    """The same for a single message, as its caller gave it."""
    return make_put(
        topic,
        create,
        [as_bytes(value)],
        None if key is None else [as_bytes(key)],
        None if headers is None else [headers_as_bytes(headers)],
        times,
    )


#: Value, key, headers, whether the topic may be made, and times: what a message has that is not a plain value.
Item = tuple[bytes, bytes | None, Mapping[str, bytes] | None, bool, Times]
#: What a batch is made of, as `make_put` wants it after the topic: create, values, keys, headers, times.
Parts = tuple[bool, list[bytes], list[bytes | None] | None, list[Mapping[str, bytes] | None] | None, Times]


class Stream:
    """Messages of one topic that are not yet sent.

    Threads append to `handles` without a lock: appending to a list is atomic, and whoever sends takes a prefix,
    under the client's lock. So nothing is lost and nothing is sent twice, whoever comes between.
    """

    __slots__ = ("create", "handle_type", "handles", "is_mixed", "opened_ms", "producer", "size", "topic")

    def __init__(self, producer: Any, topic: str, create: bool, handle_type: type[Place] | None = None) -> None:
        #: Whoever sends; handles ask it for their answer.
        self.producer = producer
        self.topic = topic
        self.handle_type = handle_type or Handle
        #: Whether plain values may make the topic.
        self.create = create
        self.handles: list[Place] = []
        #: About: threads may count over each other. What is sent is measured.
        self.size = 0
        #: There are or were items among the values.
        self.is_mixed = False
        #: When its first message came; 0 where nobody has looked yet.
        self.opened_ms = 0.0

    def add_item(self, item: Item) -> Place:
        plain = item[1] is None and item[2] is None and item[3] is self.create and item[4] is NO_TIMES
        if not plain:
            self.is_mixed = True
        handle = self.handle_type(self, item[0] if plain else item)
        self.handles.append(handle)
        self.size += len(item[0])
        return handle

    def take(self) -> list[Place]:
        """Everything that is there now; what comes meanwhile stays."""
        count = len(self.handles)
        taken = self.handles[:count]
        del self.handles[:count]
        self.size = 0
        self.opened_ms = 0.0
        return taken

    def take_back(self) -> None:
        """The last message is not wanted. Only where no other thread can have added one since."""
        value = self.handles.pop().at
        self.size -= len(value[0] if isinstance(value, tuple) else value)  # type: ignore[arg-type]

    def freeze(self, bytes_max: int) -> Iterator[tuple[Batch, Parts]]:
        """Batches of what is there now: one, unless it is large or differs in what it may make."""
        taken = self.take()
        values: list[Any] = [handle.at for handle in taken]
        if self.is_mixed:
            yield from self._freeze_mixed(taken, values, bytes_max)
            return
        start = 0
        for stop in cuts(values, bytes_max):
            batch = Batch(self.topic, self.producer)
            _assign(taken[start:stop], batch)
            yield batch, (self.create, values[start:stop], None, None, NO_TIMES)
            start = stop

    def _freeze_mixed(self, taken: list[Place], values: list[Any], bytes_max: int) -> Iterator[tuple[Batch, Parts]]:
        items: list[Item] = [
            (value, None, None, self.create, NO_TIMES) if type(value) is bytes else value for value in values
        ]
        start = 0
        for (create, times), run in groupby(items, key=lambda item: item[3:]):
            columns = list(run)
            part = taken[start : start + len(columns)]
            start += len(columns)
            first = 0
            for stop in cuts([item[0] for item in columns], bytes_max):
                batch = Batch(self.topic, self.producer)
                _assign(part[first:stop], batch)
                run_values, keys, headers, _, _ = (list(column) for column in zip(*columns[first:stop], strict=True))
                yield batch, (create, run_values, keys, headers, times)
                first = stop


def cuts(values: Sequence[bytes], bytes_max: int) -> list[int]:
    """Where to cut values into batches of not much more than `bytes_max`; the last cut is their end."""
    count = len(values)
    if not count:
        return []
    if sum(map(len, values)) <= 2 * bytes_max:
        return [count]
    found, size = [], 0
    for index, value in enumerate(values):
        if size and size + len(value) > bytes_max:
            found.append(index)
            size = 0
        size += len(value)
    return [*found, count]


def _assign(handles: list[Place], batch: Batch) -> None:
    for place, handle in enumerate(handles):
        handle.at = place
        handle.batch = batch


class Batch:
    """Messages that are on their way together. Their number and order are fixed."""

    __slots__ = ("pending", "producer", "topic")

    def __init__(self, topic: str, producer: Any) -> None:
        self.topic = topic
        self.producer = producer
        self.pending: Pending | None = None


class Place(msgspec.Struct, gc=False):
    """Where a message is: what the handles of both shells have in common."""

    #: In a stream, later in a batch.
    batch: Stream | Batch
    #: The message itself; later its place in the batch.
    at: bytes | Item | int

    def done(self) -> bool:
        """The broker has answered, or it is known that it won't."""
        batch = self.batch
        return isinstance(batch, Batch) and batch.pending is not None and batch.pending.done

    def _is_stored(self) -> bool:
        """The answer is there, and it is good."""
        return self.done() and self.batch.pending.error is None  # type: ignore[union-attr]

    def _receipt(self) -> Receipt:
        """Once it is done. Raises what the message was refused with."""
        batch, place = self.batch, self.at
        assert isinstance(batch, Batch)
        assert isinstance(place, int)
        assert batch.pending is not None
        reply = batch.pending.result()
        if not isinstance(reply, PutReply):
            raise errors.Malformed(f"a put was answered with {type(reply).__name__}")
        offset = reply.first_offset + place
        return Receipt(batch.topic, reply.topic_id, offset, 1, reply.time_ms, reply.subscriptions)


class Handle(Place, gc=False):
    """What `put_nowait` returns: one message's answer, once it is there.

    >>> handle = client.put_nowait("orders", b"one pizza")
    >>> handle.result().offset
    0
    """

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the answer. Raises what the message was refused with, or TimeoutError."""
        if self._is_stored():
            return self._receipt()
        producer = self.batch.producer
        receipt: Receipt = producer._run(producer._result_of(self, timeout_s))
        return receipt
