"""From what a caller puts to the operation that is sent: values, keys, headers and times, checked and encoded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, TypeVar

import msgspec

from oncemq.client.core.validation import check_headers, check_name
from oncemq.protocol.batch import checksum, encode_batch, key_hashes
from oncemq.protocol.commands import Envelope, Put

Value = bytes | str | bytearray | memoryview
Headers = Mapping[str, Value]

_ONLY_BYTES = {bytes}
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


def all_as_bytes(values: Iterable[Value]) -> list[bytes]:
    """Encode many values, most of which are bytes already."""
    found: list[Any] = list(values)
    return found if set(map(type, found)) <= _ONLY_BYTES else [as_bytes(value) for value in found]


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


#: The columns of a batch: values, and for each value a key or None, and headers or None. No column: none has any.
Columns = tuple[list[bytes], list[bytes | None] | None, list[Mapping[str, bytes] | None] | None]


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
) -> tuple[Put, bytes]:
    """Return the operation for a batch, and its payload."""
    payload = encode_batch(values, keys, headers, None, claim.version)
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


def columns_of(
    values: Iterable[Value],
    keys: Iterable[Value | None] | None,
    headers: Iterable[Headers | None] | None,
    messages_max: int,
    bytes_max: int,
) -> Iterator[Columns]:
    """Encode messages in chunks of about `bytes_max`. Raises as `check_columns` does, and ValueError as soon as an
    iterator ends before the values do. Each chunk shows how many messages the next one may have."""
    check_columns(values, keys, headers)
    # Checked here, and not only when the first chunk is made.
    return _columns_of(_chunks(values, messages_max, bytes_max), keys, headers)


def _columns_of(
    chunks: Iterable[list[bytes]], keys: Iterable[Value | None] | None, headers: Iterable[Headers | None] | None
) -> Iterator[Columns]:
    keys_left = None if keys is None else iter(keys)
    headers_left = None if headers is None else iter(headers)
    for chunk in chunks:
        yield encode_columns(chunk, keys_left, headers_left)


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


def _chunks(values: Iterable[Value], messages_max: int, bytes_max: int) -> Iterator[list[bytes]]:
    values_left = iter(values)
    count = _FIRST_CHUNK
    while taken := list(islice(values_left, count)):
        chunk = all_as_bytes(taken)
        size = sum(map(len, chunk))
        fitting = max(1, bytes_max * len(chunk) // max(size, 1))
        count = min(fitting, count * 16, messages_max)
        if size <= 2 * bytes_max:
            yield chunk
            continue
        start = 0
        for stop in cuts(chunk, bytes_max, messages_max):
            yield chunk[start:stop]
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
