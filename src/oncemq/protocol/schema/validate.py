"""Checks of a schema itself: what any definition must fulfil, whichever language it was written in."""

from __future__ import annotations

import re

from oncemq.protocol import errors, limits
from oncemq.protocol.schema.constraints import PATTERN, pattern_problem
from oncemq.protocol.schema.fields_text import DEPTH_MAX
from oncemq.protocol.schema.model import (
    PRECISION_MAX,
    Decimal,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
    Type,
)

#: Types of the keys of maps.
KEY_KINDS = frozenset(("string", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"))

_FORBIDDEN = re.compile(r'[\x00-\x1f"\\]')


def validate_schema(schema: Schema) -> None:
    """Raise SchemaInvalid, with the path of the field, if the schema can't be used."""
    if not schema.fields:
        raise errors.SchemaInvalid("a schema needs at least one field")
    if _validate_fields(schema.fields, "", 0) > limits.SCHEMA_FIELDS_MAX:
        raise errors.SchemaInvalid(f"the schema has more than {limits.SCHEMA_FIELDS_MAX} fields")
    if schema.encoding == "protobuf" and not (schema.message and schema.descriptors):
        raise errors.SchemaInvalid("values in Protobuf need a Protobuf definition")
    if schema.encoding == "avro" and schema.definition_kind != "avro":
        raise errors.SchemaInvalid("values in Avro need an Avro definition")


def _validate_fields(fields: tuple[Field, ...], path: str, depth: int) -> int:
    if depth > DEPTH_MAX:
        raise errors.SchemaInvalid(f"{path}: types are nested more than {DEPTH_MAX} levels deep")
    names = set()
    count = 0
    for field in fields:
        where = f"{path}.{field.name}" if path else field.name
        if not 1 <= len(field.name.encode()) <= limits.NAME_BYTES_MAX:
            raise errors.SchemaInvalid(f"{where or 'a field'}: a name has 1 to {limits.NAME_BYTES_MAX} bytes of UTF-8")
        if _FORBIDDEN.search(field.name):
            raise errors.SchemaInvalid(f"{where!r}: a name has no control characters, quotes and backslashes")
        if field.name in names:
            raise errors.SchemaInvalid(f"{where}: there are two fields with this name")
        names.add(field.name)
        problem = pattern_problem(str(field.constraints[PATTERN])) if PATTERN in field.constraints else None
        if problem is not None:
            raise errors.SchemaInvalid(f"{where}: {problem}")
        count += 1 + _validate_type(field.type, where, depth)
    return count


def _validate_type(kind: Type, path: str, depth: int) -> int:
    if isinstance(kind, Decimal):
        if not (1 <= kind.precision <= PRECISION_MAX and 0 <= kind.scale <= kind.precision):
            raise errors.SchemaInvalid(
                f"{path}: a decimal has 1 to {PRECISION_MAX} digits, and a scale from 0 to that number"
            )
    elif isinstance(kind, ListType):
        return _validate_fields((kind.item,), path, depth + 1)
    elif isinstance(kind, MapType):
        if kind.key.kind not in KEY_KINDS:
            raise errors.SchemaInvalid(f"{path}: the key of a map must be a string or an integer, not {kind.key.kind}")
        return _validate_fields((kind.value,), path, depth + 1)
    elif isinstance(kind, StructType):
        if not kind.fields:
            raise errors.SchemaInvalid(f"{path}: a struct needs at least one field")
        return _validate_fields(kind.fields, path, depth + 1)
    return 0
