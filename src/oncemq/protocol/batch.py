"""The batch codec: many messages in one payload.

`encode_batch` and `decode_batch` convert between messages and payloads. The layout of a payload is drawn above
`layout_of`. The broker only checks a payload's structure (`batch_problem`): what it needs to know travels in the
envelope (commands/operations.py).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from operator import sub
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import xxhash

from oncemq.protocol import errors, limits
from oncemq.protocol.columnar import ValuesLayout, row_values, values_layout
from oncemq.protocol.message import Message

if TYPE_CHECKING:
    from oncemq.protocol.schema import Schema

    Buffer = bytes | bytearray | memoryview
    #: Version → the topic's schema of that version, or None if it is not known.
    SchemaLookup = Callable[[int], Schema | None]
else:
    Buffer = SchemaLookup = object

PLAIN = 1
TYPED = 2
HAS_KEYS = 1
HAS_HEADERS = 2
HAS_TIMES = 4

_HEAD = struct.Struct("<BBHIIIII")
_ONE = struct.Struct("<BBHIIIIIii")
#: Where the head has the schema version, in its last four bytes.
_VERSION_AT = _HEAD.size - 4
_OFFSET = struct.Struct("<i")
_KNOWN = HAS_KEYS | HAS_HEADERS | HAS_TIMES
_PAD = [b"\0" * n for n in range(8)]
_BIG_ENDIAN = sys.byteorder == "big"

#: Encodes the headers of one message.
encode_headers = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(dict[str, bytes]).decode


def checksum(payload: Buffer) -> int:
    """Return the checksum that protects a payload from producer to consumer: XXH3, 64 bits, seed 0."""
    return xxhash.xxh3_64_intdigest(payload)


def key_hashes(keys: Sequence[bytes | None]) -> bytes:
    """Return the XXH3 hash of each key, as little-endian u64; 0 for a message without a key.

    The broker uses the hashes to see which messages have the same key.
    """
    hashes = array("Q", [0 if key is None else xxhash.xxh3_64_intdigest(key) or 1 for key in keys])
    return _little_endian(hashes)


def _little_endian(numbers: array[int]) -> bytes:
    if _BIG_ENDIAN:
        numbers.byteswap()
    return numbers.tobytes()


def _column(parts: Sequence[bytes], sizes: list[int] | None = None) -> tuple[list[bytes], int]:
    sizes = sizes or list(map(len, parts))
    if sizes and sizes.count(sizes[0]) == len(sizes):
        total = sizes[0] * len(sizes)
        raw = _equal_offsets(sizes[0], len(sizes))
    else:
        # The array is built from a list: from an iterator it would take three times as long.
        offsets = array("i", [0, *accumulate(sizes)])
        total = offsets[-1]
        raw = _little_endian(offsets)
    return [raw, _PAD[-len(raw) % 8], *parts, _PAD[-total % 8]], total


@lru_cache(maxsize=8)
def _equal_offsets(size: int, count: int) -> bytes:
    return _little_endian(array("i", [size * index for index in range(count + 1)]))


def _bitmap(keys: Sequence[bytes | None]) -> bytes:
    bits = 0
    for index, key in enumerate(keys):
        if key is not None:
            bits |= 1 << index
    size = (len(keys) + 7) // 8
    return bits.to_bytes(size + -size % 8, "little")


def encode_batch(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Mapping[str, bytes] | None] | None = None,
    times_ms: Sequence[int] | None = None,
    schema_version: int = 0,
    sizes: list[int] | None = None,
) -> bytes:
    """Encode messages as one payload. `keys`, `headers` and `times_ms` are None or as long as `values`.

    `schema_version` is the version of the topic's schema that the values match; 0 = the topic has none. `sizes` are the
    lengths of the values, if the caller has them.
    """
    if len(values) == 1 and keys is None and headers is None and times_ms is None:
        value = values[0]
        size = len(value)
        return _ONE.pack(PLAIN, 0, 0, 1, size, 0, 0, schema_version, 0, size) + value + _PAD[-size % 8]
    parts, values_bytes = _column(values, sizes)
    flags = keys_bytes = headers_bytes = 0
    if keys is not None and any(key is not None for key in keys):
        flags |= HAS_KEYS
        column, keys_bytes = _column([key or b"" for key in keys])
        parts += [_bitmap(keys), *column]
    if headers is not None and any(headers):
        flags |= HAS_HEADERS
        column, headers_bytes = _column([encode_headers(entry) if entry else b"" for entry in headers])
        parts += column
    if times_ms is not None:
        flags |= HAS_TIMES
        parts.append(_little_endian(array("q", times_ms)))
    head = _HEAD.pack(PLAIN, flags, 0, len(values), values_bytes, keys_bytes, headers_bytes, schema_version)
    return b"".join([head, *parts])


# A payload is columnar, in the layout of Arrow binary arrays, so that a reader with Arrow can use the columns without
# a copy. Numbers are little-endian. Each section starts at a multiple of 8 bytes.
#
#     byte  0   u8    encoding: 1 = plain, 2 = typed
#           1   u8    flags: 1 = keys, 2 = headers, 4 = times
#           2   u16   0
#           4   u32   count
#           8   u32   bytes of values
#          12   u32   bytes of keys
#          16   u32   bytes of headers
#          20   u32   version of the topic's schema that the values match; 0 = none
#          24   i32[count + 1]   value offsets
#               the values. In a typed batch, the columns are in the place of both (columnar/layout.py)
#     keys:     bitmap           bit i (least significant first): message i has a key
#               i32[count + 1]   key offsets
#               the keys
#     headers:  i32[count + 1]   header offsets
#               the headers: per message empty, or a msgpack map from str to bytes
#     times:    i64[count]       when each message was first stored, in milliseconds since 1970. Copied messages keep
#                                this time. Without this section, messages have the time of their batch.


class Layout(msgspec.Struct, frozen=True, gc=False):
    """The position and length of each section of a payload. A missing section has position 0: the value offsets of a
    typed batch, too."""

    count: int
    value_offsets_at: int
    values_at: int
    values_bytes: int
    bitmap_at: int
    key_offsets_at: int
    keys_at: int
    keys_bytes: int
    header_offsets_at: int
    headers_at: int
    headers_bytes: int
    times_at: int
    schema_version: int = 0


def layout_of(payload: Buffer) -> Layout:
    """Compute the layout from a payload's head.

    Raises Malformed if the sections do not fit the payload, Unsupported if the encoding is unknown.
    """
    if len(payload) < _HEAD.size:
        raise errors.Malformed("the batch is shorter than its head")
    encoding, flags, _, count, values_bytes, keys_bytes, headers_bytes, schema_version = _HEAD.unpack_from(payload)
    if encoding not in (PLAIN, TYPED) or flags & ~_KNOWN:
        what = f"encoding {encoding}" if encoding not in (PLAIN, TYPED) else f"flags {flags:#x}"
        raise errors.Unsupported(f"batch {what} is not supported by this version; upgrade it")
    if not 1 <= count <= limits.BATCH_COUNT_MAX:
        raise errors.Malformed(f"the batch has {count} messages; the range is 1 to {limits.BATCH_COUNT_MAX}")
    table = 4 * (count + 1)
    table += -table % 8
    value_offsets_at = _HEAD.size if encoding == PLAIN else 0
    values_at = _HEAD.size + table if encoding == PLAIN else _HEAD.size
    end = values_at + values_bytes + -values_bytes % 8
    bitmap_at = key_offsets_at = keys_at = header_offsets_at = headers_at = times_at = 0
    if flags & HAS_KEYS:
        bitmap_at = end
        bitmap_bytes = (count + 7) // 8
        key_offsets_at = bitmap_at + bitmap_bytes + -bitmap_bytes % 8
        keys_at = key_offsets_at + table
        end = keys_at + keys_bytes + -keys_bytes % 8
    if flags & HAS_HEADERS:
        header_offsets_at = end
        headers_at = header_offsets_at + table
        end = headers_at + headers_bytes + -headers_bytes % 8
    if flags & HAS_TIMES:
        times_at = end
        end += 8 * count
    if end != len(payload):
        raise errors.Malformed(f"the batch has {len(payload)} bytes, its head says {end}")
    return Layout(
        count,
        value_offsets_at,
        values_at,
        values_bytes,
        bitmap_at,
        key_offsets_at,
        keys_at,
        keys_bytes,
        header_offsets_at,
        headers_at,
        headers_bytes,
        times_at,
        schema_version,
    )


def typed_layout(payload: Buffer, layout: Layout) -> ValuesLayout | None:
    """Compute the layout of the columns of a typed batch; None for a plain one. Raises Malformed."""
    if layout.value_offsets_at:
        return None
    return values_layout(payload, layout.values_at, layout.values_bytes, layout.count)


def batch_problem(payload: Buffer, count: int, schema_version: int = 0) -> errors.Malformed | None:
    """Return why a payload is not a batch of `count` messages of this schema version, as far as its head and the ends
    of its offset tables show. The cost does not depend on the number of messages, only on the number of columns of a
    typed batch."""
    if count == 1 and len(payload) >= _ONE.size and _is_plain_message(payload, schema_version):
        return None
    try:
        layout = layout_of(payload)
        typed_layout(payload, layout)
    except errors.Refused as error:
        return errors.Malformed(f"the payload is not a batch: {error.text}")
    if layout.count != count:
        return errors.Malformed(f"a batch of {layout.count} messages; its envelope says {count}")
    if layout.schema_version != schema_version:
        version = layout.schema_version
        return errors.Malformed(f"a batch of schema version {version}; its envelope says {schema_version}")
    tables = (
        (layout.value_offsets_at, layout.values_bytes),
        (layout.key_offsets_at, layout.keys_bytes),
        (layout.header_offsets_at, layout.headers_bytes),
    )
    for at, total in tables:
        if at and (_OFFSET.unpack_from(payload, at)[0], _OFFSET.unpack_from(payload, at + 4 * count)[0]) != (0, total):
            return errors.Malformed("the offsets of the batch do not fit its bytes")
    return None


def _is_plain_message(payload: Buffer, schema_version: int) -> bool:
    """Whether this is a batch of one message without key, headers and time."""
    encoding, flags, _, count, size, keys_bytes, headers_bytes, version, begin, end = _ONE.unpack_from(payload)
    head = (encoding, flags, count, keys_bytes, headers_bytes, version, begin, end)
    return head == (PLAIN, 0, 1, 0, 0, schema_version, 0, size) and len(payload) == _ONE.size + size + -size % 8


class Columns(msgspec.Struct, frozen=True, gc=False):
    """A payload with its offset tables decoded. Offsets are relative to the start of their section."""

    count: int
    value_offsets: Sequence[int]
    values: bytes
    values_at: int
    key_offsets: Sequence[int] | None
    keys_at: int
    bitmap_at: int
    header_offsets: Sequence[int] | None
    headers_at: int
    times_ms: Sequence[int] | None
    #: What contains the keys and headers. `values` is the same, or the rows of a typed batch as JSON.
    payload: bytes
    schema_version: int = 0


def _numbers(raw: memoryview, code: Literal["i", "q"]) -> Sequence[int]:
    if not _BIG_ENDIAN:
        return raw.cast(code).tolist()
    swapped = array(code, raw.tobytes())
    swapped.byteswap()
    return swapped


def _offsets(view: memoryview, at: int, count: int, total: int) -> Sequence[int]:
    offsets = _numbers(view[at : at + 4 * (count + 1)], "i")
    if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != total:
        raise errors.Malformed("the offsets of the batch do not fit its bytes")
    return offsets


def split(payload: bytes) -> Columns:
    """Decode the offset tables of a payload. Raises Malformed if they do not fit the payload. The values of a typed
    batch are rows as JSON."""
    layout = layout_of(payload)
    columns = typed_layout(payload, layout)
    if columns is None:
        return _split(payload, layout)
    rows = row_values(payload, columns, 0, layout.count)
    offsets = [0, *accumulate(map(len, rows))]
    return _sections(payload, layout, offsets, b"".join(rows), 0)


def _split(payload: bytes, layout: Layout) -> Columns:
    offsets = _offsets(memoryview(payload), layout.value_offsets_at, layout.count, layout.values_bytes)
    return _sections(payload, layout, offsets, payload, layout.values_at)


def _sections(payload: bytes, layout: Layout, value_offsets: Sequence[int], values: bytes, values_at: int) -> Columns:
    count, view = layout.count, memoryview(payload)
    return Columns(
        count,
        value_offsets,
        values,
        values_at,
        _offsets(view, layout.key_offsets_at, count, layout.keys_bytes) if layout.key_offsets_at else None,
        layout.keys_at,
        layout.bitmap_at,
        _offsets(view, layout.header_offsets_at, count, layout.headers_bytes) if layout.header_offsets_at else None,
        layout.headers_at,
        _numbers(view[layout.times_at : layout.times_at + 8 * count], "q") if layout.times_at else None,
        payload,
        layout.schema_version,
    )


_NO_HEADERS: Mapping[str, bytes] = {}


def schema_version_of(payload: Buffer) -> int:
    """Return the version of the topic's schema that a payload was written with; 0 = none, or the head is not valid."""
    version: int = _HEAD.unpack_from(payload)[7] if len(payload) >= _HEAD.size else 0
    return version


def with_schema_version(payload: bytes, version: int) -> bytes:
    """Return a payload whose head names another schema version."""
    return payload[:_VERSION_AT] + version.to_bytes(4, "little") + payload[_HEAD.size :]


def decode_batch(
    payload: bytes,
    topic: str,
    topic_id: int,
    first_offset: int,
    timestamp_ms: int,
    start: int,
    stop: int,
    schemas: SchemaLookup | None = None,
) -> list[Message]:
    """Decode messages `start` to `stop` of a payload; message `start` gets offset `first_offset`. With `schemas`, the
    messages have the schema that their values match.

    Raises Malformed if the payload is damaged or has fewer messages.
    """
    layout = layout_of(payload)
    if not 0 <= start <= stop <= layout.count:
        raise errors.Malformed(f"messages {start} to {stop} were requested of a batch of {layout.count}")
    version = layout.schema_version
    schema = schemas(version) if version and schemas is not None else None
    typed = typed_layout(payload, layout)
    values: Sequence[bytes]
    if typed is not None:
        columns = _sections(payload, layout, (), payload, 0)
        values = row_values(payload, typed, start, stop)
    else:
        columns = _split(payload, layout)
        values = _cut(payload, columns.values_at, columns.value_offsets[start : stop + 1])
    offsets = range(first_offset, first_offset + stop - start)
    keys: Iterable[bytes | None] = repeat(None)
    if columns.key_offsets is not None:
        keys = _keys(columns, columns.key_offsets, start, stop)
    headers: Iterable[Mapping[str, bytes]] = repeat(_NO_HEADERS)
    if columns.header_offsets is not None:
        headers = [_headers(columns, index) for index in range(start, stop)]
    times_ms = repeat(timestamp_ms) if columns.times_ms is None else columns.times_ms[start:stop]
    # To construct a message takes most of the time: defaults are left out, and no code in Python runs for each.
    rest: tuple[Any, ...] = (repeat(version), repeat(schema)) if version else ()
    return list(map(Message, repeat(topic), offsets, values, keys, headers, times_ms, repeat(topic_id), *rest))


#: Parts of at least this size are sliced one by one: to copy them takes longer than to cut them.
_SLICED_BYTES_MIN = 1024
#: `struct` formats of parts by their size.
_PART_FORMATS = [f"{size}s" for size in range(_SLICED_BYTES_MIN)]
#: Parts of one size are cut this many at a time.
_CUT_COUNT = 1024


@lru_cache(maxsize=64)
def _parts_format(size: int, count: int) -> struct.Struct:
    return struct.Struct(_PART_FORMATS[size] * count)


def _cut(payload: bytes, at: int, offsets: Sequence[int]) -> Sequence[bytes]:
    """Return the parts of a payload between these offsets, which are relative to `at`."""
    count = len(offsets) - 1
    # The offsets of a damaged batch may fall, or lie outside of the payload.
    if count > 1 and 0 <= offsets[0] <= offsets[-1] <= len(payload) - at:
        sizes = list(map(sub, offsets[1:], offsets))
        size = sizes[0]
        if 0 <= size < _SLICED_BYTES_MIN and sizes.count(size) == count:
            return _cut_equal(payload, at + offsets[0], size, count)
        if min(sizes) >= 0 and max(sizes) < _SLICED_BYTES_MIN:
            parts_format = "".join(map(_PART_FORMATS.__getitem__, sizes))
            return struct.Struct(parts_format).unpack_from(payload, at + offsets[0])
    return [payload[at + begin : at + end] for begin, end in pairwise(offsets)]


def _cut_equal(payload: bytes, at: int, size: int, count: int) -> list[bytes]:
    parts: list[bytes] = []
    for first in range(0, count, _CUT_COUNT):
        parts_format = _parts_format(size, min(_CUT_COUNT, count - first))
        parts += parts_format.unpack_from(payload, at + first * size)
    return parts


def decode_stored(
    payload: bytes,
    topic: str,
    topic_id: int,
    first_offset: int,
    timestamp_ms: int,
    skip: int,
    count: int,
    stored_count: int = 0,
    schemas: SchemaLookup | None = None,
) -> list[Message]:
    """Decode `count` messages of a stored batch, from message `skip` on. `stored_count` is how many the batch has from
    there on, if that is more.

    Raises Undecodable, or Unsupported for an encoding of a later version. The error says how to go past them, and past
    those behind them that can't be decoded either."""
    try:
        return decode_batch(payload, topic, topic_id, first_offset, timestamp_ms, skip, skip + count, schemas)
    except errors.OnceMQError as error:
        count = max(count, _undecodable_count(payload, skip, stored_count))
        last = first_offset + count - 1
        which = f"offset {first_offset}" if count == 1 else f"offsets {first_offset} to {last}"
        text = (
            f"{which} of '{topic}' can't be decoded: {error.text}. To skip, ack offset {last}, "
            f"or seek the subscription to {last + 1}"
        )
        raise errors.Undecodable(text) if isinstance(error, errors.Malformed) else type(error)(text) from None


def _undecodable_count(payload: bytes, skip: int, count: int) -> int:
    """Return how many of `count` messages can't be decoded, from message `skip` to the first one that can."""
    with suppress(errors.OnceMQError):
        layout = layout_of(payload)
        typed = typed_layout(payload, layout)
        columns = _split(payload, layout) if typed is None else _sections(payload, layout, (), payload, 0)
        for index in range(skip, min(skip + count, layout.count)):
            with suppress(errors.OnceMQError):
                _headers(columns, index)
                if typed is not None:
                    row_values(payload, typed, index, index + 1)
                return index - skip
    return count


def _keys(columns: Columns, offsets: Sequence[int], start: int, stop: int) -> Sequence[bytes | None]:
    keys = _cut(columns.payload, columns.keys_at, offsets[start : stop + 1])
    bitmap = columns.payload[columns.bitmap_at + start // 8 : columns.bitmap_at + (stop + 7) // 8]
    bits = int.from_bytes(bitmap, "little") >> start % 8
    everyone = (1 << stop - start) - 1
    if bits & everyone == everyone:
        return keys
    digits = reversed(f"{bits & everyone:0{stop - start}b}")
    return [key if digit == "1" else None for key, digit in zip(keys, digits, strict=True)]


def _headers(columns: Columns, index: int) -> Mapping[str, bytes]:
    if columns.header_offsets is None:
        return _NO_HEADERS
    at = columns.headers_at
    raw = columns.payload[at + columns.header_offsets[index] : at + columns.header_offsets[index + 1]]
    if not raw:
        return _NO_HEADERS
    try:
        return _decode_headers(raw)
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.Malformed(f"the headers of a message could not be decoded: {error}") from None
