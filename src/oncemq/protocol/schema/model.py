"""The schema of a topic: named, typed fields with the types of Arrow, and how values are encoded.

The structs travel in commands and are stored in events and snapshots, so a new attribute comes last and has a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import msgspec

ScalarKind = Literal[
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "string",
    "binary",
    "date",
    "time",
    "timestamp",
    "timestamp_ntz",
]
SCALAR_KINDS: Final[tuple[ScalarKind, ...]] = get_args(ScalarKind)

#: How the values of a topic are encoded.
Encoding = Literal["json", "avro", "protobuf"]
#: The language of a definition.
DefinitionKind = Literal["fields", "json-schema", "avro", "protobuf"]

#: Digits of a decimal, as in Arrow's decimal128.
PRECISION_MAX = 38

#: Names of the only field of a list and of the values of a map.
ITEM = "item"
VALUE = "value"


class Scalar(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="scalar"):
    """A type without parameters.

    `timestamp` has microseconds in UTC, `timestamp_ntz` microseconds without a time zone, `time` microseconds since
    midnight, `date` days.
    """

    kind: ScalarKind


class Decimal(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="decimal"):
    precision: int
    scale: int


class ListType(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="list"):
    #: Its name is ITEM.
    item: Field


class MapType(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="map"):
    #: A string or an integer: JSON writes keys as strings.
    key: Scalar
    #: Its name is VALUE.
    value: Field


class StructType(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="struct"):
    fields: tuple[Field, ...]


Type = Scalar | Decimal | ListType | MapType | StructType


class Field(msgspec.Struct, array_like=True, frozen=True, gc=False):
    name: str
    type: Type
    #: The value may be null, or missing, which means the same.
    nullable: bool = True
    #: What readers get if the value is missing, in the form that it has in JSON; None = no default.
    default: Any = None
    doc: str = ""
    #: Limits on values, with the names and meanings of JSON Schema (constraints.py).
    constraints: Mapping[str, Any] = {}

    @property
    def is_required(self) -> bool:
        """Whether a value must be present."""
        return not self.nullable and self.default is None


class Schema(msgspec.Struct, array_like=True, frozen=True, gc=False):
    fields: tuple[Field, ...]
    encoding: Encoding = "json"
    #: The text as it was given.
    definition: str = ""
    definition_kind: DefinitionKind = "fields"
    #: The name of the Protobuf message.
    message: str = ""
    #: Protobuf: the serialised FileDescriptorSet of the definition, so that readers need no compiler.
    descriptors: bytes = b""

    def field(self, name: str) -> Field | None:
        """Return the field with this name."""
        return next((field for field in self.fields if field.name == name), None)


class SchemaVersion(msgspec.Struct, array_like=True, frozen=True, gc=False):
    #: Starts at 1 and increases by one with each new schema of the topic.
    version: int
    schema: Schema
    #: When the broker stored it.
    time_ms: int = 0


def nested_fields(kind: Type) -> tuple[Field, ...]:
    """Return the fields inside a type: the item of a list, the value of a map, the members of a struct."""
    if isinstance(kind, ListType):
        return (kind.item,)
    if isinstance(kind, MapType):
        return (kind.value,)
    return kind.fields if isinstance(kind, StructType) else ()


def count_fields(fields: tuple[Field, ...]) -> int:
    """Return the number of fields on all levels."""
    # Without recursion: the schema of a peer may be nested to any depth.
    count, left = 0, list(fields)
    while left:
        count += 1
        left += nested_fields(left.pop().type)
    return count


def same_types(left: Type, right: Type) -> bool:
    """Whether two types are equal, apart from documentation, defaults and constraints."""
    if isinstance(left, ListType) and isinstance(right, ListType):
        return _same_field(left.item, right.item)
    if isinstance(left, MapType) and isinstance(right, MapType):
        return left.key == right.key and _same_field(left.value, right.value)
    if isinstance(left, StructType) and isinstance(right, StructType):
        return len(left.fields) == len(right.fields) and all(map(_same_field, left.fields, right.fields))
    return left == right


def _same_field(left: Field, right: Field) -> bool:
    return left.name == right.name and left.nullable == right.nullable and same_types(left.type, right.type)
