"""From what a caller puts to the operation that is sent: values, keys, headers and times, checked and encoded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec

from oncemq.client.core.validation import check_headers, check_name
from oncemq.protocol.batch import checksum, encode_batch, key_hashes
from oncemq.protocol.commands import Envelope, Put

Value = bytes | str | bytearray | memoryview
Headers = Mapping[str, Value]

#: How many values `put_many` takes first, to learn how large they are.
_FIRST_CHUNK = 16


def as_bytes(value: Value) -> bytes:
    """Encode text as UTF-8. Raises TypeError if the value is neither text nor bytes."""
    if isinstance(value, bytes):
        return value if type(value) is bytes else bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"values, keys and headers are bytes or str, not {type(value).__name__}")


def all_as_bytes(values: Sequence[Value]) -> list[bytes]:
    """Encode many values, most of which are bytes already. May return the list that it was given."""
    found: list[Any] = values if isinstance(values, list) else list(values)
    return found if are_bytes(found) else [as_bytes(value) for value in found]


def are_bytes(values: Sequence[object]) -> bool:
    # To count in a list is faster than to collect a set.
    return list(map(type, values)).count(bytes) == len(values)


def headers_as_bytes(headers: Headers) -> dict[str, bytes]:
    """Check and encode headers. Raises TypeError, NameInvalid for a name that is not UTF-8, or TooLarge."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers are a mapping from str to bytes or str, not {type(headers).__name__}")
    for name in headers:
        check_name(name, "a header's name")
    found = {str.__str__(name): as_bytes(value) for name, value in headers.items()}
    check_headers(found)
    return found


def check_columns(values: object, keys: object, headers: object) -> None:
    """Check what `put_many` gets. Raises TypeError for one value where there must be many, and ValueError for keys or
    headers of another length than the values. Iterators have no length: one that has more than is needed, such as
    `itertools.repeat`, is allowed."""
    for column, what in ((values, "values"), (keys, "keys")):
        if isinstance(column, str | bytes | bytearray | memoryview):
            raise TypeError(f"{what} are an iterable of bytes or str, not one {type(column).__name__}")
    if isinstance(headers, Mapping):
        raise TypeError("headers are an iterable of mappings, not one mapping")
    for column, what in ((keys, "keys"), (headers, "headers")):
        if isinstance(column, Sized) and isinstance(values, Sized) and len(column) != len(values):
            raise ValueError(f"put_many got {len(column)} {what} for {len(values)} values")


class Times(msgspec.Struct, frozen=True, gc=False):
    """When messages expire, and when they are due; 0 = never, and immediately."""

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


#: At most this many messages, and about this many bytes.
Limits = tuple[int, int]


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The version of a topic's schema that values were checked against; 0 = none. The topic's id tells it from another
    topic of the same name."""

    version: int = 0
    topic_id: int = 0


NO_CLAIM = Claim()


def make_put(
    topic: str,
    create: bool,
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Mapping[str, bytes] | None] | None = None,
    times: Times = NO_TIMES,
    claim: Claim = NO_CLAIM,
    sizes: list[int] | None = None,
) -> tuple[Put, bytes]:
    """Return the operation for a batch, and its payload. `sizes` are the lengths of the values, if they are known."""
    payload = encode_batch(values, keys, headers, None, claim.version, sizes)
    hashes = key_hashes(keys) if keys is not None and any(key is not None for key in keys) else b""
    times_ms = (times.ttl_ms, times.due_ms)
    envelope = Envelope(len(values), len(payload), checksum(payload), *times_ms, hashes, claim.version, claim.topic_id)
    return Put(topic, envelope, bool(create)), payload


class OneMessage(msgspec.Struct, frozen=True):
    """A message as a caller puts it: checked, but for its value, which may be an object that a schema encodes."""

    topic: str
    value: object
    keys: list[bytes | None] | None
    headers: list[Mapping[str, bytes] | None] | None
    create: bool
    times: Times

    def make(self, value: bytes, claim: Claim) -> tuple[Put, bytes]:
        """Return the operation, and its payload."""
        return make_put(self.topic, self.create, [value], self.keys, self.headers, self.times, claim)

    def as_many(self) -> ManyMessages:
        """Return the message where any number is expected."""
        return ManyMessages(self.topic, (self.value,), self.keys, self.headers, self.create, self.times)


def one_message(
    topic: str,
    value: object,
    key: Value | None,
    headers: Headers | None,
    create: bool,
    ttl_s: float | None,
    delay_s: float | None,
) -> OneMessage:
    """Return a message as a caller puts it. Raises as `as_bytes`, `headers_as_bytes` and `times_of` do."""
    return OneMessage(
        topic,
        value,
        None if key is None else [as_bytes(key)],
        None if headers is None else [headers_as_bytes(headers)],
        create,
        times_of(ttl_s, delay_s),
    )


V = TypeVar("V")


def encode_columns(
    values: list[V], keys: Iterable[Value | None] | None, headers: Iterable[Headers | None] | None
) -> tuple[list[V], list[bytes | None] | None, list[Mapping[str, bytes] | None] | None]:
    """Take and encode a key and headers for each value. Raises ValueError if there are too few."""
    count = len(values)
    found_keys: list[bytes | None] | None = None
    if keys is not None:
        found_keys = [None if key is None else as_bytes(key) for key in islice(keys, count)]
        _check_length(found_keys, count, "keys")
    found_headers: list[Mapping[str, bytes] | None] | None = None
    if headers is not None:
        found_headers = [None if entry is None else headers_as_bytes(entry) for entry in islice(headers, count)]
        _check_length(found_headers, count, "headers")
    return values, found_keys, found_headers


class Chunk(NamedTuple):
    """Values of one batch."""

    values: list[bytes]
    claim: Claim
    #: The length of each value.
    sizes: list[int]


class Chunks(Iterator[Chunk]):
    """Values, encoded, in chunks of about `bytes_max`. Each chunk shows how many values the next one may have.

    If `encode` raises, no value is lost: the next call encodes the same ones again."""

    def __init__(
        self, values: Iterable[object], encode: Callable[[list[object]], tuple[list[bytes], Claim]], limits: Limits
    ) -> None:
        self._values = iter(values)
        self._encode = encode
        self._messages_max, self._bytes_max = limits
        self._count = _FIRST_CHUNK
        #: Taken, and not encoded.
        self._taken: list[object] = []
        self._encoded: deque[Chunk] = deque()

    def __next__(self) -> Chunk:
        if not self._encoded:
            self._taken = self._taken or list(islice(self._values, self._count))
            if not self._taken:
                raise StopIteration
            values, claim = self._encode(self._taken)
            self._taken = []
            self._divide(Chunk(values, claim, list(map(len, values))))
        return self._encoded.popleft()

    def _divide(self, chunk: Chunk) -> None:
        values, claim, sizes = chunk
        size = sum(sizes)
        fitting = max(1, self._bytes_max * len(values) // max(size, 1))
        self._count = min(fitting, self._count * 16, self._messages_max)
        if size <= 2 * self._bytes_max:
            self._encoded.append(chunk)
            return
        start = 0
        for stop in cuts(values, self._bytes_max, self._messages_max):
            self._encoded.append(Chunk(values[start:stop], claim, sizes[start:stop]))
            start = stop


def _check_length(found: Sequence[object], count: int, what: str) -> None:
    if len(found) != count:
        raise ValueError(f"put_many got fewer {what} than values")


def cuts(values: Sequence[bytes], bytes_max: int, messages_max: int) -> list[int]:
    """Return where to cut values into batches of at most `messages_max`, and of not much more than `bytes_max`. The
    last cut is their end."""
    count = len(values)
    if not count:
        return []
    if count <= messages_max and sum(map(len, values)) <= 2 * bytes_max:
        return [count]
    found, start, size = [], 0, 0
    for index, value in enumerate(values):
        if index - start == messages_max or (size and size + len(value) > bytes_max):
            found.append(index)
            start, size = index, 0
        size += len(value)
    return [*found, count]


class ManyMessages(msgspec.Struct, frozen=True):
    """Messages as a caller puts them: not encoded yet, and perhaps not even there."""

    topic: str
    values: Iterable[object]
    keys: Iterable[Value | None] | None
    headers: Iterable[Headers | None] | None
    create: bool
    times: Times

    def batches(
        self, encode: Callable[[list[object]], tuple[list[bytes], Claim]], limits: Limits
    ) -> Iterator[tuple[Put, bytes]]:
        """Return operations and their payloads, each made when it is asked for. Raises what `encode` raises, after
        which the same batch can be asked for again, and ValueError as soon as there are fewer keys or headers than
        values."""
        keys = None if self.keys is None else iter(self.keys)
        headers = None if self.headers is None else iter(self.headers)

        def make(chunk: Chunk) -> tuple[Put, bytes]:
            columns = encode_columns(chunk.values, keys, headers)
            return make_put(self.topic, self.create, *columns, self.times, chunk.claim, chunk.sizes)

        return map(make, Chunks(self.values, encode, limits))


def many_messages(
    topic: str,
    values: Iterable[object],
    keys: Iterable[Value | None] | None,
    headers: Iterable[Headers | None] | None,
    create: bool,
    ttl_s: float | None,
    delay_s: float | None,
) -> ManyMessages:
    """Return messages as a caller puts them. Raises as `check_columns` and `times_of` do."""
    check_columns(values, keys, headers)
    return ManyMessages(topic, values, keys, headers, create, times_of(ttl_s, delay_s))
