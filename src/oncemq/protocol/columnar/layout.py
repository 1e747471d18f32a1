"""Where the columns of a typed batch are in its payload, computed from its head, description and buffer table.

The time that this takes depends on the number of columns, not of rows. It checks everything that a consumer relies on
before it looks at single values: the lengths of the buffers, the ends of the offset tables, and that the rows do not
become larger than `TEXT_BYTES_MAX` by the repeated names of their columns.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.columnar.description import parse_description
from oncemq.protocol.schema.model import Decimal, Field, ListType, MapType, Scalar, StructType, Type, nested_fields

if TYPE_CHECKING:
    from oncemq.protocol.batch import Buffer

#: The maximum of what the names of columns add to the rows of one batch when these are written as JSON.
TEXT_BYTES_MAX = 64 * 1024 * 1024
#: What a value takes as JSON, beside the name of its column.
_VALUE_BYTES = 4

#: Bytes per value. A value of type bool takes one bit.
WIDTHS = {
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float32": 4,
    "float64": 8,
    "date": 4,
    "time": 8,
    "timestamp": 8,
    "timestamp_ntz": 8,
}
DECIMAL_BYTES = 16

#: Bytes of the description, and number of buffers.
HEAD = struct.Struct("<II")
_OFFSET = struct.Struct("<i")

# The values of a typed batch. Numbers are little-endian. Each part starts at a multiple of 8 bytes, and is padded with
# zeros.
#
#     u32                      bytes of the description
#     u32                      number of buffers
#     the description          msgpack, as in description.py
#     u32[buffers]             the bytes of each buffer, without padding
#     the buffers              column by column, each column followed by its parts
#
# The buffers of a column with n values:
#
#     bitmap                   bit i (least significant first): value i is not null. 0 bytes: no value is null
#     bool                     a bitmap of the values
#     numbers, times, decimal  the values. date: i32, days since 1970. time: i64, microseconds since midnight.
#                              timestamp, timestamp_ntz: i64, microseconds since 1970. decimal: i128, without the point
#     string, binary           i32[n + 1] offsets, then the bytes
#     list                     i32[n + 1] offsets, then the buffers of the items
#     map                      i32[n + 1] offsets, then the buffers of the keys, none of which is null (the bitmap has
#                              0 bytes), then those of the values
#     struct                   the buffers of its members, which have n values each
#
# A null takes as many bytes as a value; what they are means nothing.


class ColumnLayout(msgspec.Struct, frozen=True):
    """The position of each buffer of a column. A missing buffer has position 0."""

    type: Type
    count: int
    bitmap_at: int = 0
    offsets_at: int = 0
    data_at: int = 0
    data_bytes: int = 0
    #: The items of a list; keys and values of a map; the members of a struct.
    parts: tuple[ColumnLayout, ...] = ()


class ValuesLayout(msgspec.Struct, frozen=True):
    fields: tuple[Field, ...]
    columns: tuple[ColumnLayout, ...]


def values_layout(payload: Buffer, at: int, size: int, count: int) -> ValuesLayout:
    """Compute the layout of the values, which take `size` bytes from `at` on. Raises Malformed."""
    if size < HEAD.size:
        raise errors.Malformed("the values are shorter than their head")
    description_bytes, buffers = HEAD.unpack_from(payload, at)
    end, at = at + size, at + HEAD.size
    if at + description_bytes > end:
        raise errors.Malformed("the description of the columns is longer than the values")
    fields = parse_description(bytes(payload[at : at + description_bytes]))
    if buffers != sum(_count_buffers(field.type) for field in fields):
        raise errors.Malformed(f"the columns do not have {buffers} buffers")
    walk = _Walk(payload, at + padded(description_bytes), end, buffers)
    found = ValuesLayout(fields, tuple(walk.column(field.type, count) for field in fields))
    walk.finish()
    text_bytes = sum(map(_text_bytes, fields, found.columns))
    if text_bytes > TEXT_BYTES_MAX:
        raise errors.Malformed("the names of the columns would take too much space in the rows of this batch")
    return found


def padded(size: int) -> int:
    return size + -size % 8


def part_types(kind: Type) -> tuple[Type, ...]:
    """The types of the parts of a type, in the order of their buffers."""
    if isinstance(kind, ListType):
        return (kind.item.type,)
    if isinstance(kind, MapType):
        return (kind.key, kind.value.type)
    if isinstance(kind, StructType):
        return tuple(field.type for field in kind.fields)
    return ()


def _count_buffers(kind: Type) -> int:
    own = 2
    if isinstance(kind, StructType):
        own = 1
    elif isinstance(kind, Scalar) and kind.kind in ("string", "binary"):
        own = 3
    return own + sum(map(_count_buffers, part_types(kind)))


class _Walk:
    """Goes through the buffers in their order."""

    def __init__(self, payload: Buffer, at: int, end: int, buffers: int) -> None:
        self._payload = payload
        self._end = end
        self._next = at + padded(4 * buffers)
        if self._next > end:
            raise errors.Malformed("the values are shorter than their buffer table")
        self._sizes = iter(struct.unpack_from(f"<{buffers}I", payload, at))

    def finish(self) -> None:
        if self._next != self._end:
            raise errors.Malformed("the columns of the batch do not fit its bytes")

    def _take(self, expected: int) -> int:
        """Return the position of the next buffer."""
        size, at = next(self._sizes), self._next
        if size != expected:
            raise errors.Malformed(f"a buffer of a column has {size} bytes instead of {expected}")
        self._next += padded(size)
        if self._next > self._end:
            raise errors.Malformed("the columns of the batch do not fit its bytes")
        return at

    def _bitmap(self, count: int) -> int:
        """Return the position of the next buffer, which may be missing."""
        size, at = next(self._sizes), self._next
        if size not in (0, (count + 7) // 8):
            raise errors.Malformed(f"the bitmap of {count} values has {size} bytes")
        self._next += padded(size)
        return at if size else 0

    def column(self, kind: Type, count: int) -> ColumnLayout:
        bitmap_at = self._bitmap(count)
        if isinstance(kind, StructType):
            return ColumnLayout(kind, count, bitmap_at, parts=self._parts(kind, count))
        if isinstance(kind, ListType | MapType):
            offsets_at, items = self._offsets(count)
            return ColumnLayout(kind, count, bitmap_at, offsets_at, parts=self._parts(kind, items))
        offsets_at = 0
        if isinstance(kind, Decimal):
            size = DECIMAL_BYTES * count
        elif kind.kind in ("string", "binary"):
            offsets_at, size = self._offsets(count)
        else:
            size = (count + 7) // 8 if kind.kind == "bool" else WIDTHS[kind.kind] * count
        return ColumnLayout(kind, count, bitmap_at, offsets_at, self._take(size), size)

    def _parts(self, kind: Type, count: int) -> tuple[ColumnLayout, ...]:
        parts = tuple(self.column(part, count) for part in part_types(kind))
        if isinstance(kind, MapType) and parts[0].bitmap_at:
            # JSON has no such key, and Arrow ends the process.
            raise errors.Malformed("the keys of a map have a bitmap, and must not be null")
        return parts

    def _offsets(self, count: int) -> tuple[int, int]:
        """Return the position of an offset table, and its last offset."""
        at = self._take(4 * (count + 1))
        first, last = _OFFSET.unpack_from(self._payload, at)[0], _OFFSET.unpack_from(self._payload, at + 4 * count)[0]
        if first != 0 or last < 0:
            raise errors.Malformed("the offsets of a column do not start at 0, or end below it")
        return at, last


def _text_bytes(field: Field, column: ColumnLayout) -> int:
    own = column.count * (len(field.name) + _VALUE_BYTES)
    return own + sum(map(_text_bytes, _part_fields(column.type), column.parts))


def _part_fields(kind: Type) -> Sequence[Field]:
    keys = (Field("key", kind.key),) if isinstance(kind, MapType) else ()
    return (*keys, *nested_fields(kind))


def row_text_bytes(fields: tuple[Field, ...]) -> int:
    """What the names of the columns add to one row as JSON, without those in lists and maps."""
    return sum(_row_text_bytes(field) for field in fields)


def _row_text_bytes(field: Field) -> int:
    nested = row_text_bytes(field.type.fields) if isinstance(field.type, StructType) else 0
    return len(field.name) + _VALUE_BYTES + nested
