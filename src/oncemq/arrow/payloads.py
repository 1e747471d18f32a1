"""Encodes rows as payloads without a loop over the rows: the reverse of columns.py. The layout is that of
protocol/batch.py."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from oncemq.protocol import errors
from oncemq.protocol.batch import HAS_HEADERS, HAS_KEYS, HAS_TIMES, PLAIN

_HEAD = struct.Struct("<BBHIIIII")
#: What a row adds to a column in addition to its bytes: an offset, and a bit.
_OFFSET_BYTES = 5
_TIME_BYTES = 8

# The number of lengths that msgpack's shortest forms can have: of a map, a string, and bytes.
_MAP_HEADS, _TEXT_HEADS, _BYTES_HEADS = 16, 32, 256


class _Heads(NamedTuple):
    """Msgpack's shortest forms, by length."""

    maps: Any
    texts: Any
    bytes: Any


@functools.cache
def _heads() -> _Heads:
    """Created on first use: pyarrow imports pandas for it, which most Spark processes do not need."""
    return _Heads(
        maps=pa.array([bytes([0x80 | count]) for count in range(_MAP_HEADS)], pa.binary()),
        texts=pa.array([bytes([0xA0 | length]) for length in range(_TEXT_HEADS)], pa.binary()),
        bytes=pa.array([bytes([0xC4, length]) for length in range(_BYTES_HEADS)], pa.binary()),
    )


class MessageColumns(NamedTuple):
    """Columns of the same length; None if there is no such column."""

    values: Any
    keys: Any = None
    #: Msgpack maps; empty bytes for a row without headers.
    headers: Any = None
    times_ms: Any = None

    def slice(self, start: int, count: int) -> MessageColumns:
        return MessageColumns(*(None if column is None else column.slice(start, count) for column in self))


class Payload(NamedTuple):
    rows: int
    payload: bytes
    key_hashes: bytes


def message_columns(batch: Any, *, keeps_times: bool) -> MessageColumns:
    """Return the columns that are stored. Raises Malformed for a row that can't be a message."""
    values = _to_binary(batch.column("value"))
    _refuse_nulls(values, "value", "filter such rows out, or give them a value with coalesce()")
    return MessageColumns(values, *extra_columns(batch, keeps_times=keeps_times))


def extra_columns(batch: Any, *, keeps_times: bool) -> tuple[Any, Any, Any]:
    """Return keys, packed headers and times as they are stored; None for each column that there is not."""
    names = batch.schema.names
    keys = _to_binary(batch.column("key")) if "key" in names else None
    headers = _pack_headers(batch.column("headers")) if "headers" in names else None
    times_ms = None
    if keeps_times:
        times_ms = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        _refuse_nulls(times_ms, "timestamp", "filter such rows out, or write without timestamps=keep")
    if keys is not None and keys.null_count == len(keys):
        keys = None
    return keys, headers, times_ms


def _refuse_nulls(column: Any, name: str, advice: str) -> None:
    if column.null_count:
        raise errors.Malformed(f"column '{name}' is null in {column.null_count} of {len(column)} rows: {advice}")


def _to_binary(column: Any) -> Any:
    """Convert text to UTF-8, with 32-bit offsets as in a payload."""
    return column if column.type == pa.binary() else column.cast(pa.binary())


def version_runs(versions: Any) -> list[tuple[int, int, int]]:
    """Return (start, count, version) for each run of equal versions in a column; null is 0."""
    numbers = versions.fill_null(0).to_numpy()
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1)).tolist() if len(numbers) else []
    ends = [*starts[1:], len(numbers)]
    return [(start, end - start, int(numbers[start])) for start, end in zip(starts, ends, strict=True)]


def build_payloads(rows: MessageColumns, bytes_max: int, schema_version: int = 0) -> Iterator[Payload]:
    """Encode rows, in their order, as batches of at most `bytes_max` without head and padding. A larger row is a batch
    of its own. `schema_version` is the version of the topic's schema that the values match; 0 = the topic has none."""
    start = 0
    for stop in _batch_ends(rows, bytes_max):
        yield _encode(rows.slice(start, stop - start), schema_version)
        start = stop


def _batch_ends(rows: MessageColumns, bytes_max: int) -> list[int]:
    """The index after the last row of each batch."""
    columns = [column for column in (rows.values, rows.keys, rows.headers) if column is not None]
    sizes = sum(_lengths(column) + _OFFSET_BYTES for column in columns)
    if rows.times_ms is not None:
        sizes = sizes + _TIME_BYTES
    ends = np.cumsum(sizes)
    found: list[int] = []
    at = reached = 0
    while at < len(ends):
        at = max(at + 1, int(np.searchsorted(ends, reached + bytes_max, side="right")))
        reached = int(ends[at - 1])
        found.append(at)
    return found


def _lengths(column: Any) -> Any:
    return np.diff(_offsets(column)).astype(np.int64)


def _offsets(column: Any) -> Any:
    if not len(column):
        return np.zeros(1, dtype=np.int32)
    return np.frombuffer(column.buffers()[1], dtype="<i4", count=len(column) + 1, offset=4 * column.offset)


def _encode(rows: MessageColumns, schema_version: int) -> Payload:
    values, values_bytes = _section(rows.values)
    extras = extra_sections(rows.keys, rows.headers, rows.times_ms)
    count = len(rows.values)
    sizes = (values_bytes, extras.keys_bytes, extras.headers_bytes)
    head = _HEAD.pack(PLAIN, extras.flags, 0, count, *sizes, schema_version)
    return Payload(count, b"".join([head, *values, *extras.parts]), extras.key_hashes)


class ExtraSections(NamedTuple):
    """What a payload has in addition to its values."""

    flags: int
    keys_bytes: int
    headers_bytes: int
    parts: list[Any]
    key_hashes: bytes


def extra_sections(keys: Any, headers: Any, times_ms: Any) -> ExtraSections:
    """Encode the columns of keys, packed headers and times; None if there is no such column."""
    flags = keys_bytes = headers_bytes = 0
    parts: list[Any] = []
    hashes = b""
    if keys is not None and keys.null_count < len(keys):
        flags |= HAS_KEYS
        section, keys_bytes = _section(keys.fill_null(b""))
        parts += [_bitmap(keys), *section]
        hashes = _hash_keys(keys)
    if headers is not None:
        section, headers_bytes = _section(headers)
        if headers_bytes:
            flags |= HAS_HEADERS
            parts += section
    if times_ms is not None:
        flags |= HAS_TIMES
        parts.append(times_ms.to_numpy().astype("<i8").tobytes())
    return ExtraSections(flags, keys_bytes, headers_bytes, parts, hashes)


def _section(column: Any) -> tuple[list[Any], int]:
    """Encode offsets that start at 0, then the bytes, each padded to a multiple of 8. Also returns the byte count."""
    offsets = _offsets(column)
    first, last = int(offsets[0]), int(offsets[-1])
    raw = (offsets - offsets[0]).astype("<i4").tobytes()
    data = column.buffers()[2].slice(first, last - first) if last > first else b""
    return [raw, b"\0" * (-len(raw) % 8), data, b"\0" * (-(last - first) % 8)], last - first


def _bitmap(column: Any) -> bytes:
    bits = np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little").tobytes()
    return bits + b"\0" * (-len(bits) % 8)


def _hash_keys(keys: Any) -> bytes:
    """As `key_hashes` of protocol/batch.py. Equal keys are hashed once."""
    encoded = keys.dictionary_encode()
    distinct = [xxhash.xxh3_64_intdigest(key) or 1 for key in encoded.dictionary.to_pylist()]
    hashes = np.array([*distinct, 0], dtype="<u8")
    # A row without a key has the index -1, which is the 0 at the end.
    return bytes(hashes[encoded.indices.fill_null(-1).to_numpy()].tobytes())


def _pack_headers(column: Any) -> Any:
    """Encode a map column as msgpack maps. Returns None if no row has headers."""
    if column.null_count == len(column):
        return None
    counts = pc.fill_null(pc.list_value_length(_as_lists(column, column.keys)), 0)
    if not pc.sum(counts).as_py():
        return None
    entries = _entries(column)
    if entries is None or pc.max(counts).as_py() >= _MAP_HEADS:
        return _pack_row_by_row(column)
    joined = pc.binary_join(_as_lists(column, entries), b"")
    packed = pc.binary_join_element_wise(_heads().maps.take(counts), joined, b"")
    return pc.if_else(pc.greater(counts, 0), packed, pa.scalar(b"", pa.binary()))


def _as_lists(column: Any, items: Any) -> Any:
    """Group one item per entry of a map column by row."""
    return pa.ListArray.from_arrays(column.offsets.cast(pa.int32()), items)


def _entries(column: Any) -> Any | None:
    """Encode each name and value of the maps; None if one is too long for the short forms. Raises Malformed."""
    names, values = column.keys.cast(pa.binary()), _to_binary(column.items)
    if values.null_count:
        raise errors.Malformed("a header's value is null: leave it out of the map")
    name_bytes, value_bytes = pc.binary_length(names), pc.binary_length(values)
    if pc.max(name_bytes).as_py() >= _TEXT_HEADS or pc.max(value_bytes).as_py() >= _BYTES_HEADS:
        return None
    heads = _heads().texts.take(name_bytes), _heads().bytes.take(value_bytes)
    return pc.binary_join_element_wise(heads[0], names, heads[1], values, b"")


def _pack_row_by_row(column: Any) -> Any:
    encode = msgspec.msgpack.Encoder().encode
    maps = (None if entries is None else _as_dict(entries) for entries in column.to_pylist())
    return pa.array([encode(headers) if headers else b"" for headers in maps], pa.binary())


def _as_dict(entries: list[tuple[str, bytes | str]]) -> dict[str, bytes]:
    return {name: value.encode() if isinstance(value, str) else value for name, value in entries}
