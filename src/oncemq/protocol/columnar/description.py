"""The description of a typed batch: the names and types of its columns, as msgpack.

A batch contains its own description, so that every consumer can decode it without asking for the topic's schema. The
description says what the bytes are. What the values may be (nullable, defaults) is said by the topic's schema.

    columns = [[name, type], …]
    type    = "bool" | "int8" … "uint64" | "float32" | "float64" | "string" | "binary" | "date" | "time" | "timestamp"
              | "timestamp_ntz"
            | ["decimal", precision, scale]
            | ["list", type of the items]
            | ["map", "string" or an integer type, type of the values]
            | ["struct", columns]
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from oncemq.protocol import errors, limits
from oncemq.protocol.schema.fields_text import DEPTH_MAX
from oncemq.protocol.schema.model import (
    ITEM,
    PRECISION_MAX,
    SCALAR_KINDS,
    VALUE,
    Decimal,
    Field,
    ListType,
    MapType,
    Scalar,
    StructType,
    Type,
    count_fields,
)
from oncemq.protocol.schema.validate import KEY_KINDS

_SCALARS: dict[str, Scalar] = {kind: Scalar(kind) for kind in SCALAR_KINDS}


def describe(fields: tuple[Field, ...]) -> bytes:
    """Encode the description of columns."""
    return msgspec.msgpack.encode(_encode_members(fields))


def _encode_members(fields: tuple[Field, ...]) -> list[Any]:
    return [[field.name, _encode(field.type)] for field in fields]


def _encode(kind: Type) -> Any:
    if isinstance(kind, Scalar):
        return kind.kind
    if isinstance(kind, Decimal):
        return ["decimal", kind.precision, kind.scale]
    if isinstance(kind, ListType):
        return ["list", _encode(kind.item.type)]
    if isinstance(kind, MapType):
        return ["map", kind.key.kind, _encode(kind.value.type)]
    return ["struct", _encode_members(kind.fields)]


@functools.lru_cache(maxsize=64)
def parse_description(raw: bytes) -> tuple[Field, ...]:
    """Decode a description. All fields are nullable. Raises Malformed."""
    if len(raw) > limits.SCHEMA_BYTES_MAX:
        raise errors.Malformed(f"the description of the columns has {len(raw)} bytes")
    try:
        decoded = msgspec.msgpack.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise errors.Malformed(f"the description of the columns can't be decoded: {error}") from None
    fields = _parse_members(decoded, 0)
    if count_fields(fields) > limits.SCHEMA_FIELDS_MAX:
        raise errors.Malformed(f"the batch has more than {limits.SCHEMA_FIELDS_MAX} columns on all levels")
    return fields


def _parse_members(members: Any, depth: int) -> tuple[Field, ...]:
    if not isinstance(members, list) or not 1 <= len(members) <= limits.SCHEMA_FIELDS_MAX:
        raise errors.Malformed("a batch or struct has no columns, or too many")
    fields = []
    for member in members:
        match member:
            case [str() as name, encoded]:
                fields.append(Field(name, _parse(encoded, depth)))
            case _:
                raise errors.Malformed("a column is described by its name and type")
    if len({field.name for field in fields}) != len(fields):
        raise errors.Malformed("two columns have the same name")
    return tuple(fields)


def _parse(encoded: Any, depth: int) -> Type:
    if depth > DEPTH_MAX:
        raise errors.Malformed(f"the columns are nested more than {DEPTH_MAX} levels deep")
    match encoded:
        case str() if encoded in _SCALARS:
            return _SCALARS[encoded]
        case ["decimal", int() as precision, int() as scale] if 0 <= scale <= precision and (
            1 <= precision <= PRECISION_MAX
        ):
            return Decimal(precision, scale)
        case ["list", item]:
            return ListType(Field(ITEM, _parse(item, depth + 1)))
        case ["map", str() as key, value] if key in KEY_KINDS:
            return MapType(_SCALARS[key], Field(VALUE, _parse(value, depth + 1)))
        case ["struct", members]:
            return StructType(_parse_members(members, depth + 1))
    raise errors.Malformed("a column has an unknown type")
