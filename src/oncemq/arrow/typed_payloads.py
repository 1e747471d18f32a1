"""Encodes rows of typed columns as payloads without a loop over the rows. The layout is that of
protocol/columnar/layout.py, which is the one of Arrow: buffers are joined, not converted."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from oncemq.arrow.payloads import Payload, extra_sections
from oncemq.protocol import errors, limits
from oncemq.protocol.batch import TYPED
from oncemq.protocol.columnar import TEXT_BYTES_MAX, describe, row_text_bytes
from oncemq.protocol.columnar.layout import HEAD as VALUES_HEAD
from oncemq.protocol.schema import SchemaVersion
from oncemq.protocol.schema.arrow import to_arrow

_HEAD = struct.Struct("<BBHIIIII")
#: The first estimate of how many rows fit is lowered by this share, since rows differ.
_ESTIMATE = 0.9


class TypedRows(NamedTuple):
    """Rows of a typed topic. The columns have the types of its schema, and the same length."""

    #: A record batch with the columns of the schema, in its order.
    values: Any
    keys: Any = None
    #: Msgpack maps; empty bytes for a row without headers.
    headers: Any = None
    times_ms: Any = None

    def slice(self, start: int, count: int) -> TypedRows:
        return TypedRows(*(None if column is None else column.slice(start, count) for column in self))


def build_typed_payloads(rows: TypedRows, version: SchemaVersion, bytes_max: int) -> Iterator[Payload]:
    """Encode rows, in their order, as typed batches of at most `bytes_max`. A larger row is a batch of its own."""
    expected = to_arrow(version.schema)
    if not rows.values.schema.equals(expected):
        raise TypeError(f"the columns {rows.values.schema} are not those of the schema, {expected}")
    start, total = 0, rows.values.num_rows
    count = min(_rows_max(rows, version, bytes_max), total)
    while start < total:
        count = min(count, total - start)
        payload = _encode(rows.slice(start, count), version)
        if payload is not None and (len(payload.payload) <= bytes_max or count == 1):
            yield payload
            start += count
        elif count == 1:
            raise errors.TooLarge("a row has too many items in its lists and maps for one message")
        else:
            count = max(1, count // 2)


def _rows_max(rows: TypedRows, version: SchemaVersion, bytes_max: int) -> int:
    """How many rows of the average size fit into a batch."""
    size = sum(column.nbytes for column in rows if column is not None)
    fitting = int(bytes_max * _ESTIMATE / max(1, size / max(1, rows.values.num_rows)))
    by_text = TEXT_BYTES_MAX // max(1, row_text_bytes(version.schema.fields))
    return max(1, min(fitting, by_text, limits.BATCH_COUNT_MAX))


def _encode(rows: TypedRows, version: SchemaVersion) -> Payload | None:
    """Encode one batch; None if its lists and maps have too many items."""
    description = describe(version.schema.fields)
    buffers = _Buffers()
    for field, column in zip(rows.values.schema, rows.values.columns, strict=True):
        buffers.add_column(column, len(field.name))
    if buffers.text_bytes > TEXT_BYTES_MAX:
        return None
    table = np.array(buffers.sizes, dtype="<u4").tobytes()
    sizes = VALUES_HEAD.pack(len(description), len(buffers.sizes))
    values = [sizes, description, _padding(description), table, _padding(table), *buffers.parts]
    values_bytes = sum(map(len, values))
    extras = extra_sections(rows.keys, rows.headers, rows.times_ms)
    count = rows.values.num_rows
    head = _HEAD.pack(
        TYPED,
        extras.flags,
        0,
        count,
        values_bytes,
        extras.keys_bytes,
        extras.headers_bytes,
        version.version,
    )
    return Payload(count, b"".join([head, *values, *extras.parts]), extras.key_hashes)


def _padding(part: Any) -> bytes:
    return b"\0" * (-len(part) % 8)


class _Buffers:
    """The buffers of columns, in their order."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.sizes: list[int] = []
        #: What the names of columns take as JSON, as columnar/layout.py counts it.
        self.text_bytes = 0

    def add_column(self, column: Any, name_bytes: int) -> None:
        if column.offset:
            # The bits of a slice do not start at a byte.
            column = pa.concat_arrays([column])
        count, kind, buffers = len(column), column.type, column.buffers()
        self.text_bytes += count * (name_bytes + 4)
        bits = (count + 7) // 8
        self._add(buffers[0].slice(0, bits) if column.null_count else b"")
        if pa.types.is_struct(kind):
            for index in range(kind.num_fields):
                self.add_column(column.field(index), len(kind.field(index).name))
        elif pa.types.is_map(kind):
            first, items = self._add_offsets(buffers[1], count)
            self.add_column(column.keys.slice(first, items), len("key"))
            self.add_column(column.items.slice(first, items), len("value"))
        elif pa.types.is_list(kind):
            self.add_column(column.values.slice(*self._add_offsets(buffers[1], count)), len("item"))
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            first, size = self._add_offsets(buffers[1], count)
            self._add(buffers[2].slice(first, size) if size else b"")
        else:
            size = bits if pa.types.is_boolean(kind) else kind.bit_width // 8 * count
            self._add(buffers[1].slice(0, size) if size else b"")

    def _add_offsets(self, buffer: Any, count: int) -> tuple[int, int]:
        """Add an offset table that starts at 0. Returns its former start, and the length of what it spans."""
        if not count:
            self._add(b"\0\0\0\0")
            return 0, 0
        offsets = np.frombuffer(buffer, dtype="<i4", count=count + 1)
        first, last = int(offsets[0]), int(offsets[-1])
        self._add(buffer.slice(0, 4 * (count + 1)) if not first else (offsets - offsets[0]).tobytes())
        return first, last - first

    def _add(self, buffer: Any) -> None:
        self.sizes.append(len(buffer))
        self.parts += [buffer, _padding(buffer)]
