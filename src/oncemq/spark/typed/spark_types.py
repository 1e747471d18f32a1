"""The columns of a schema as Spark has them.

Spark has no unsigned integers: they become the next wider signed type, uint64 a decimal of 20 digits. All columns are
nullable, since Spark's sources do not promise more.
"""

from __future__ import annotations

from typing import Any

import msgspec
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType as SparkStruct

from oncemq.protocol.schema import Decimal, Field, ListType, MapType, Scalar, Schema, StructType, Type
from oncemq.protocol.schema.arrow import to_arrow

_WIDER: dict[str, Type] = {
    "uint8": Scalar("int16"),
    "uint16": Scalar("int32"),
    "uint32": Scalar("int64"),
    "uint64": Decimal(20, 0),
}


def spark_fields(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Return fields with types that Spark has."""
    return tuple(_field(field) for field in fields)


def _field(field: Field) -> Field:
    return Field(field.name, spark_type(field.type), True, field.default)


def spark_type(kind: Type) -> Type:
    """Return the type that Spark reads a type as."""
    if isinstance(kind, Scalar):
        return _WIDER.get(kind.kind, kind)
    if isinstance(kind, ListType):
        return ListType(_field(kind.item))
    if isinstance(kind, MapType):
        key = _WIDER.get(kind.key.kind, kind.key)
        # Maps by uint64 do not occur in Spark; their keys are text.
        return MapType(key if isinstance(key, Scalar) else Scalar("string"), _field(kind.value))
    return StructType(spark_fields(kind.fields)) if isinstance(kind, StructType) else kind


def struct_of(fields: tuple[Field, ...]) -> SparkStruct:
    """Return Spark's type for rows with these fields, which must be those of `spark_fields`."""
    bare = tuple(msgspec.structs.replace(field, doc="") for field in fields)
    return from_arrow_schema(to_arrow(Schema(bare)), prefer_timestamp_ntz=True)


def arrow_schema_of(struct: SparkStruct) -> Any:
    """Return the Arrow schema that Spark expects for rows of a type."""
    return to_arrow_schema(struct, timezone="UTC")
