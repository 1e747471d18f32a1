"""Tables of the caller as rows of a typed topic: found in any library of data frames, and checked against the schema.

A column may have another type than the schema if its values fit exactly: integers of another width, large strings,
dictionaries, other units of time. A float64 is rounded to a float32. A value that does not fit is an error that names
its column.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from oncemq.arrow.defaults import default_scalar
from oncemq.arrow.nullability import retyped, with_nulls
from oncemq.protocol import errors
from oncemq.protocol.schema import Field, ListType, MapType, Scalar, Schema, StructType, type_text
from oncemq.protocol.schema.arrow import field_to_arrow, to_arrow
from oncemq.protocol.schema.model import PRECISION_MAX

#: The years that Python and RFC 3339 have: 1 to 9999, in microseconds or days since 1970; and the times of a day.
_RANGES = {
    "timestamp": (-62_135_596_800_000_000, 253_402_300_799_999_999),
    "timestamp_ntz": (-62_135_596_800_000_000, 253_402_300_799_999_999),
    "date": (-719_162, 2_932_896),
    "time": (0, 86_399_999_999),
}


def as_table(frame: Any) -> Any:
    """Return a pyarrow Table of a table, record batch, pandas or Polars frame, or anything with the Arrow PyCapsule
    interface. Raises TypeError."""
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    if hasattr(frame, "__arrow_c_stream__") and not _is_pandas(frame):
        return pa.table(frame)
    if _is_pandas(frame):
        return pa.Table.from_pandas(frame, preserve_index=False)
    raise TypeError(
        f"expected an Arrow table, a record batch, or a frame of pandas or Polars, not {type(frame).__name__}"
    )


def _is_pandas(frame: Any) -> bool:
    return type(frame).__module__.partition(".")[0] == "pandas"


def conform(table: Any, schema: Schema, topic: str) -> Any:
    """Return a table with exactly the columns of the schema. Columns that may be missing are null or have their
    default. Raises SchemaMismatch, which names the column and both types."""
    names = table.schema.names
    known = {field.name for field in schema.fields}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise errors.SchemaMismatch(f"column '{unknown[0]}' is not in the schema of '{topic}'")
    if len(set(names)) != len(names):
        raise errors.SchemaMismatch("two columns of the frame have the same name")
    columns = []
    for field in schema.fields:
        column = table.column(field.name) if field.name in names else None
        columns.append(_conform_column(column, field, table.num_rows, topic))
    return pa.table(columns, schema=to_arrow(schema))


def _conform_column(column: Any, field: Field, count: int, topic: str) -> Any:
    wanted = field_to_arrow(field).type
    if column is None:
        if field.is_required:
            raise errors.SchemaMismatch(f"column '{field.name}' of '{topic}' is missing, and not nullable")
        return pa.nulls(count, wanted) if field.default is None else pa.repeat(default_scalar(field), count)
    if column.type != wanted:
        column = _cast(column, field, wanted, topic)
    if column.null_count and not field.nullable:
        if field.default is None:
            raise errors.SchemaMismatch(
                f"column '{field.name}' of '{topic}' is null in {column.null_count} of {count} rows, and not nullable"
            )
        column = column.fill_null(default_scalar(field))
    for chunk in column.chunks:
        problem = _problem(chunk, field, field.name)
        if problem is not None:
            raise errors.SchemaMismatch(f"column {problem}, for '{topic}'")
    return column


def _cast(column: Any, field: Field, wanted: Any, topic: str) -> Any:
    if pa.types.is_dictionary(column.type):
        column = _without_dictionary(column)
    what = f"column '{field.name}' is {column.type}, and {type_text(field.type)} in the schema of '{topic}'"
    if not _fits(column.type, wanted):
        raise errors.SchemaMismatch(what)
    try:
        if pa.types.is_decimal(wanted) and pa.types.is_integer(column.type):
            # Arrow asks for a type that holds all integers of the column's type.
            column = column.cast(pa.decimal128(PRECISION_MAX, wanted.scale))
        loose = column.cast(with_nulls(wanted))
        if wanted == pa.float32() and _infinities(loose) != _infinities(column):
            raise errors.SchemaMismatch(f"{what}: a value is too large")
        return pa.chunked_array([retyped(chunk, wanted) for chunk in loose.chunks], wanted)
    except pa.ArrowException as error:
        raise errors.SchemaMismatch(f"{what}: {error}") from None


def _infinities(column: Any) -> int:
    """How many values are infinite. Arrow casts a number that is too large for a float32 to such a one."""
    return pc.sum(pc.is_inf(column)).as_py() or 0


def _without_dictionary(column: Any) -> Any:
    kind = column.type.value_type
    # Arrow does not take items of a view.
    kind = pa.string() if pa.types.is_string_view(kind) else pa.binary() if pa.types.is_binary_view(kind) else kind
    return pa.chunked_array([chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks], kind)


def _fits(given: Any, wanted: Any) -> bool:
    """Whether values of a type may be values of another. Whether each does, the cast says."""
    kinds = pa.types
    if given == wanted or kinds.is_null(given):
        return True
    if kinds.is_dictionary(given):
        return _fits(given.value_type, wanted)
    if kinds.is_struct(wanted):
        names = {field.name for field in wanted}
        if not kinds.is_struct(given) or len({field.name for field in given}) != given.num_fields:
            return False
        return all(field.name in names and _fits(field.type, wanted.field(field.name).type) for field in given)
    if kinds.is_map(wanted):
        return (
            kinds.is_map(given) and _fits(given.key_type, wanted.key_type) and _fits(given.item_type, wanted.item_type)
        )
    if kinds.is_list(wanted):
        return _is_list(given) and _fits(given.value_type, wanted.value_type)
    if kinds.is_timestamp(wanted):
        return kinds.is_timestamp(given) and (given.tz is None) == (wanted.tz is None)
    return any(is_one(given) and is_one(wanted) for is_one in _FAMILIES)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)) or (
        pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    )


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_exact(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)) or bool(
        pa.types.is_fixed_size_binary(kind)
    )


_FAMILIES = (_is_number, _is_exact, _is_text, _is_bytes, pa.types.is_date, pa.types.is_time)


def _problem(array: Any, field: Field, path: str) -> str | None:
    """Return what a schema forbids in a column of the right type: nulls, and times that only Arrow has."""
    if array.null_count and not field.nullable:
        return f"'{path}' contains {array.null_count} nulls, and is not nullable"
    kind = field.type
    if isinstance(kind, Scalar) and kind.kind in _RANGES:
        low, high = _RANGES[kind.kind]
        numbers = pc.min_max(array.cast(pa.int32() if kind.kind == "date" else pa.int64())).as_py()
        if numbers["min"] is not None and not low <= numbers["min"] <= numbers["max"] <= high:
            range_text = "outside of a day" if kind.kind == "time" else "before the year 1 or after 9999"
            return f"'{path}' has a {kind.kind} {range_text}"
    elif isinstance(kind, ListType):
        return _problem(array.flatten(), kind.item, f"{path}[]")
    elif isinstance(kind, MapType):
        first, last = (array.offsets[0].as_py(), array.offsets[-1].as_py()) if len(array) else (0, 0)
        return _problem(array.items.slice(first, last - first), kind.value, f"{path}{{}}")
    elif isinstance(kind, StructType):
        present = array.drop_null() if array.null_count else array
        members = (
            _problem(present.field(index), member, f"{path}.{member.name}") for index, member in enumerate(kind.fields)
        )
        return next(filter(None, members), None)
    return None


def key_column(table: Any, name: str) -> Any:
    """Return the keys of messages: text as UTF-8, bytes as they are, other values as text. Raises SchemaMismatch."""
    if name not in table.schema.names:
        raise errors.SchemaMismatch(
            f"there is no column '{name}' for the key; there are {', '.join(table.schema.names)}"
        )
    column = table.column(name).combine_chunks()
    try:
        return column if column.type == pa.binary() else column.cast(pa.string()).cast(pa.binary())
    except pa.ArrowException:
        raise errors.SchemaMismatch(f"column '{name}' is {column.type}, which can't be a key") from None
