"""Checks of a schema itself: what any definition must fulfil, whichever language it was written in."""

from __future__ import annotations

import re

from oncemq.protocol import errors, limits
from oncemq.protocol.schema.constraints import PATTERN, PATTERNS_CHARACTERS_MAX, pattern_problem
from oncemq.protocol.schema.fields_text import DEPTH_MAX
from oncemq.protocol.schema.model import (
    PRECISION_MAX,
    Decimal,
    Field,
    MapType,
    Schema,
    StructType,
    Type,
    nested_fields,
)

#: Types of the keys of maps.
KEY_KINDS = frozenset(("string", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"))

_FORBIDDEN = re.compile(r'[\x00-\x1f"\\]')


class FieldCount:
    """Counts the fields of a schema on all levels, and the characters of their patterns. A definition that uses its
    named types several times can have many more fields than lines, so whoever reads one counts, and stops at the
    limit."""

    def __init__(self) -> None:
        self._count = 0
        self._pattern_characters = 0

    def add(self) -> None:
        """Raise SchemaInvalid at the first field too many."""
        self._count += 1
        if self._count > limits.SCHEMA_FIELDS_MAX:
            raise errors.SchemaInvalid(f"the schema has more than {limits.SCHEMA_FIELDS_MAX} fields")

    def add_pattern(self, pattern: str) -> None:
        """Raise SchemaInvalid if the patterns are too long together."""
        self._pattern_characters += len(pattern)
        if self._pattern_characters > PATTERNS_CHARACTERS_MAX:
            raise errors.SchemaInvalid(
                f"the patterns of the schema have more than {PATTERNS_CHARACTERS_MAX:,} characters"
            )


def validate_schema(schema: Schema) -> None:
    """Raise SchemaInvalid, with the path of the field, if the schema can't be used."""
    if not schema.fields:
        raise errors.SchemaInvalid("a schema needs at least one field")
    _validate_fields(schema.fields, "", 0, FieldCount())
    if schema.encoding == "protobuf" and not (schema.message and schema.descriptors):
        raise errors.SchemaInvalid("values in Protobuf need a Protobuf definition")
    if schema.encoding == "avro" and schema.definition_kind != "avro":
        raise errors.SchemaInvalid("values in Avro need an Avro definition")


def _validate_fields(fields: tuple[Field, ...], path: str, depth: int, count: FieldCount) -> None:
    if fields and depth > DEPTH_MAX:
        raise errors.SchemaInvalid(f"{path}: types are nested more than {DEPTH_MAX} levels deep")
    names = set()
    for field in fields:
        count.add()
        where = f"{path}.{field.name}" if path else field.name
        if not 1 <= len(field.name.encode()) <= limits.NAME_BYTES_MAX:
            raise errors.SchemaInvalid(f"{where or 'a field'}: a name has 1 to {limits.NAME_BYTES_MAX} bytes of UTF-8")
        if _FORBIDDEN.search(field.name):
            raise errors.SchemaInvalid(f"{where!r}: a name has no control characters, quotes and backslashes")
        if field.name in names:
            raise errors.SchemaInvalid(f"{where}: there are two fields with this name")
        names.add(field.name)
        if PATTERN in field.constraints:
            _validate_pattern(str(field.constraints[PATTERN]), where, count)
        _validate_type(field.type, where, depth, count)


def _validate_pattern(pattern: str, path: str, count: FieldCount) -> None:
    count.add_pattern(pattern)
    problem = pattern_problem(pattern)
    if problem is not None:
        raise errors.SchemaInvalid(f"{path}: {problem}")


def _validate_type(kind: Type, path: str, depth: int, count: FieldCount) -> None:
    if isinstance(kind, Decimal):
        if not (1 <= kind.precision <= PRECISION_MAX and 0 <= kind.scale <= kind.precision):
            raise errors.SchemaInvalid(
                f"{path}: a decimal has 1 to {PRECISION_MAX} digits, and a scale from 0 to that number"
            )
    elif isinstance(kind, MapType) and kind.key.kind not in KEY_KINDS:
        raise errors.SchemaInvalid(f"{path}: the key of a map must be a string or an integer, not {kind.key.kind}")
    elif isinstance(kind, StructType) and not kind.fields:
        raise errors.SchemaInvalid(f"{path}: a struct needs at least one field")
    _validate_fields(nested_fields(kind), path, depth + 1, count)
