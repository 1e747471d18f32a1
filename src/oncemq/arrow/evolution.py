"""Columns of one version of a schema as those of another: what a reader with that version sees.

A column that the rows do not have is null, or has its default. A column that the reader does not know is left out. A
type that holds all values of the former one, such as int64 for int32, is converted.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from oncemq.arrow.defaults import default_scalar
from oncemq.protocol import errors
from oncemq.protocol.schema import Field, ListType, MapType, Schema, StructType, fields_text
from oncemq.protocol.schema.arrow import field_to_arrow, type_to_arrow


def evolve(batch: Any, schema: Schema) -> Any:
    """Return the columns of another version of a schema as those of this one. Their schema is that of
    `protocol.schema.arrow.to_arrow`. Raises SchemaMismatch, which names the column, for a null where this version
    allows none, and for a type that can't be converted."""
    names = batch.schema.names
    columns = [
        evolve_column(batch.column(names.index(field.name)) if field.name in names else None, field, batch.num_rows)
        for field in schema.fields
    ]
    fields = [field_to_arrow(field) for field in schema.fields]
    return pa.record_batch(columns, schema=pa.schema(fields))


def evolve_column(column: Any, field: Field, count: int, path: str = "") -> Any:
    """Return a column with the type of a field; None is a missing one."""
    path = f"{path}.{field.name}" if path else field.name
    if column is None:
        found = _missing(field, count)
    elif column.type == type_to_arrow(field.type):
        found = column
    else:
        found = _converted(column, field, path)
    if not field.nullable and found.null_count:
        if field.default is None:
            raise errors.SchemaMismatch(
                f"column '{path}' has {found.null_count} nulls, which the schema does not allow"
            )
        found = found.fill_null(default_scalar(field))
    return found


def _missing(field: Field, count: int) -> Any:
    if field.default is None:
        return pa.nulls(count, type_to_arrow(field.type))
    return pa.repeat(default_scalar(field), count)


def _converted(column: Any, field: Field, path: str) -> Any:
    kind, arrow_type = field.type, column.type
    if isinstance(kind, StructType) and pa.types.is_struct(arrow_type):
        return _converted_struct(column, kind, path)
    if isinstance(kind, ListType) and pa.types.is_list(arrow_type):
        items = evolve_column(column.values, kind.item, len(column.values), path)
        return _with_children(column, type_to_arrow(kind), [items])
    if isinstance(kind, MapType) and pa.types.is_map(arrow_type):
        values = evolve_column(column.items, kind.value, len(column.items), path)
        entries = pa.StructArray.from_arrays(
            [column.keys, values], fields=[type_to_arrow(kind).key_field, type_to_arrow(kind).item_field]
        )
        return _with_children(column, type_to_arrow(kind), [entries])
    try:
        return column.cast(type_to_arrow(kind))
    except pa.ArrowException as error:
        raise errors.SchemaMismatch(
            f"column '{path}' is {arrow_type}, and can't be read as {fields_text((field,))}: {error}"
        ) from None


def _converted_struct(column: Any, kind: StructType, path: str) -> Any:
    names = [field.name for field in column.type]
    members = []
    for field in kind.fields:
        part = column.field(names.index(field.name)) if field.name in names else None
        # What a null contains does not count.
        loose = field if part is None or not column.null_count else _nullable(field)
        members.append(evolve_column(part, loose, len(column), path))
    if column.offset:
        column = pa.concat_arrays([column])
    return pa.Array.from_buffers(type_to_arrow(kind), len(column), column.buffers()[:1], children=members)


def _nullable(field: Field) -> Field:
    return Field(field.name, field.type, True, field.default)


def _with_children(column: Any, arrow_type: Any, children: list[Any]) -> Any:
    """Return a list or map with other items of the same number."""
    buffers = column.buffers()[:2]
    return pa.Array.from_buffers(arrow_type, len(column), buffers, offset=column.offset, children=children)
