"""Encodes record batches in the text format of PostgreSQL's COPY, by whole columns, without Python code per row.

    value TAB value TAB … LF       \\N = null; backslash, tab, LF and CR inside a text are escaped with a backslash

CSV would be simpler, but before PostgreSQL 18 a line `\\.` inside a quoted text ends the data.
"""

from __future__ import annotations

from typing import Any

import numpy
import pyarrow as pa
import pyarrow.compute as pc

_TEXT = pa.large_string()
#: The backslash is first, because the other escapes add backslashes.
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_HEX = numpy.frombuffer(bytes(range(256)).hex().encode(), dtype=numpy.uint16)


def copy_text(batch: Any) -> memoryview:
    """Return the rows of a record batch as COPY data."""
    columns = [pc.fill_null(_text(column), "\\N") for column in batch.columns]
    rows = columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, pa.scalar("\t", _TEXT))
    ended = pc.binary_join_element_wise(rows, pa.scalar("", _TEXT), pa.scalar("\n", _TEXT))
    return _bytes(ended)


def _text(column: Any) -> Any:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _hexadecimal(column.cast(pa.large_binary()))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))
    text = column.cast(_TEXT)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        for plain, escaped in _ESCAPES:
            text = pc.replace_substring(text, plain, escaped)
    return text


def _hexadecimal(column: Any) -> Any:
    """Encode bytes as `\\x00ff`, the input format of PostgreSQL, with the backslash escaped."""
    offsets = numpy.frombuffer(column.buffers()[1], dtype=numpy.int64)[column.offset : column.offset + len(column) + 1]
    digits = _HEX[numpy.frombuffer(_bytes(column), dtype=numpy.uint8)]
    doubled = pa.py_buffer((offsets - offsets[0]) * 2)
    # A new bitmap, because the column may be a slice that begins in the middle of a byte.
    valid = pc.is_valid(column).buffers()[1]
    text = pa.Array.from_buffers(_TEXT, len(column), [valid, doubled, pa.py_buffer(digits)])
    return pc.binary_join_element_wise(pa.scalar("\\\\x", _TEXT), text, pa.scalar("", _TEXT))


def _bytes(column: Any) -> memoryview:
    """The concatenated values of a large string or binary column, without a copy."""
    _, offsets, data = column.buffers()
    bounds = numpy.frombuffer(offsets, dtype=numpy.int64)[column.offset : column.offset + len(column) + 1]
    return memoryview(b"") if data is None else memoryview(data)[bounds[0] : bounds[-1]]
