"""The columns of a typed batch as Arrow arrays that share the payload's memory, and their conversion to another version
of the schema."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from oncemq.protocol import errors
from oncemq.protocol.batch import Layout, typed_layout
from oncemq.protocol.columnar import ColumnLayout
from oncemq.protocol.schema import ListType, MapType, StructType
from oncemq.protocol.schema.arrow import field_to_arrow, type_to_arrow


def typed_columns(payload: bytes, layout: Layout) -> Any:
    """Return the columns of a typed batch as a record batch, without a copy. Raises Malformed."""
    found = typed_layout(payload, layout)
    assert found is not None, "this is not a typed batch"
    buffer = pa.py_buffer(payload)
    arrays = [_array(buffer, column) for column in found.columns]
    try:
        for array in arrays:
            # Arrow does not check offsets and text, and a producer may have written anything.
            array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise errors.Malformed(f"a column of a typed batch is damaged: {error}") from None
    return pa.record_batch(arrays, schema=pa.schema([field_to_arrow(field) for field in found.fields]))


def _array(buffer: Any, column: ColumnLayout) -> Any:
    kind, count = column.type, column.count
    bitmap = buffer.slice(column.bitmap_at, (count + 7) // 8) if column.bitmap_at else None
    buffers = [bitmap]
    if column.offsets_at:
        buffers.append(buffer.slice(column.offsets_at, 4 * (count + 1)))
    if isinstance(kind, ListType | MapType | StructType):
        parts = [_array(buffer, part) for part in column.parts]
        arrow_type = type_to_arrow(kind)
        if isinstance(kind, MapType):
            entries = pa.struct([arrow_type.key_field, arrow_type.item_field])
            parts = [pa.Array.from_buffers(entries, len(parts[0]), [None], children=parts)]
        return pa.Array.from_buffers(arrow_type, count, buffers, children=parts)
    buffers.append(buffer.slice(column.data_at, column.data_bytes))
    return pa.Array.from_buffers(type_to_arrow(kind), count, buffers)
