"""Conversions between schemas and those of pyarrow. This module needs pyarrow; nothing else of the package does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from oncemq.protocol import errors
from oncemq.protocol.schema.fields_text import fields_text
from oncemq.protocol.schema.model import (
    ITEM,
    PRECISION_MAX,
    VALUE,
    Decimal,
    Field,
    ListType,
    MapType,
    Scalar,
    ScalarKind,
    Schema,
    StructType,
    Type,
)

_DOC = b"doc"

_SCALARS: dict[ScalarKind, Any] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_KINDS = {kind: name for name, kind in _SCALARS.items()}
#: Types of Arrow whose values a scalar type of ours can express too.
_ALSO: dict[Any, ScalarKind] = {
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date64(): "date",
    pa.float16(): "float32",
    pa.time32("s"): "time",
    pa.time32("ms"): "time",
    pa.time64("ns"): "time",
    pa.timestamp("s"): "timestamp_ntz",
    pa.timestamp("ms"): "timestamp_ntz",
}


def to_arrow(schema: Schema) -> Any:
    """Return the schema as a `pyarrow.Schema`."""
    return pa.schema([field_to_arrow(field) for field in schema.fields])


def field_to_arrow(field: Field) -> Any:
    """Return a field as a `pyarrow.Field`."""
    metadata = {_DOC: field.doc.encode()} if field.doc else None
    return pa.field(field.name, type_to_arrow(field.type), field.nullable, metadata=metadata)


def type_to_arrow(kind: Type) -> Any:
    """Return a type as a `pyarrow.DataType`."""
    if isinstance(kind, Scalar):
        return _SCALARS[kind.kind]
    if isinstance(kind, Decimal):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, ListType):
        return pa.list_(field_to_arrow(kind.item))
    if isinstance(kind, MapType):
        return pa.map_(type_to_arrow(kind.key), field_to_arrow(kind.value))
    return pa.struct([field_to_arrow(field) for field in kind.fields])


def from_arrow(schema: Any) -> Schema:
    """Return a `pyarrow.Schema` as a schema whose values are JSON.

    Raises SchemaInvalid for a type without an equivalent: nanoseconds, durations, unions, decimals of over 38 digits.
    """
    fields = tuple(field_from_arrow(field, field.name) for field in schema)
    return Schema(fields, "json", fields_text(fields), "fields")


def field_from_arrow(field: Any, path: str, name: str = "") -> Field:
    """Return a `pyarrow.Field` as a field. `path` is named in errors."""
    doc = (field.metadata or {}).get(_DOC, b"").decode(errors="replace")
    return Field(name or field.name, type_from_arrow(field.type, path), field.nullable, None, doc)


def type_from_arrow(kind: Any, path: str) -> Type:
    """Return a `pyarrow.DataType` as a type. `path` is named in errors."""
    if kind in _KINDS:
        return Scalar(_KINDS[kind])
    if kind in _ALSO:
        return Scalar(_ALSO[kind])
    if pa.types.is_dictionary(kind):
        return type_from_arrow(kind.value_type, path)
    if pa.types.is_timestamp(kind) and kind.unit != "ns" and kind.tz:
        # An instant is the same in every zone: only the zone's name is lost.
        return Scalar("timestamp")
    if pa.types.is_fixed_size_binary(kind):
        return Scalar("binary")
    if pa.types.is_decimal(kind) and kind.precision <= PRECISION_MAX and 0 <= kind.scale <= kind.precision:
        return Decimal(kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return ListType(field_from_arrow(kind.value_field, f"{path}.{ITEM}", ITEM))
    if pa.types.is_map(kind):
        key = type_from_arrow(kind.key_type, f"{path}.key")
        if isinstance(key, Scalar):
            return MapType(key, field_from_arrow(kind.item_field, f"{path}.{VALUE}", VALUE))
    if pa.types.is_struct(kind):
        return StructType(tuple(field_from_arrow(field, f"{path}.{field.name}") for field in kind))
    raise errors.SchemaInvalid(f"{path}: a schema can't express Arrow's type {kind}")
