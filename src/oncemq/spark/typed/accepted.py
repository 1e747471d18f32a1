"""Which types of a DataFrame's columns a topic's schema accepts: those whose values its own type holds exactly.
Unsigned integers accept the type that Spark reads them as; each value is checked when it is written."""

from __future__ import annotations

from oncemq.protocol.schema import ListType, MapType, Scalar, StructType, Type
from oncemq.protocol.schema.compatibility import holds
from oncemq.spark.typed.spark_types import spark_type

_INTEGERS = ("int8", "int16", "int32", "int64")


def accepts(given: Type, wanted: Type) -> bool:
    """Whether a column of the type `given` can be written as `wanted`."""
    if isinstance(wanted, StructType):
        return isinstance(given, StructType) and _accepts_struct(given, wanted)
    if isinstance(wanted, ListType):
        return isinstance(given, ListType) and accepts(given.item.type, wanted.item.type)
    if isinstance(wanted, MapType):
        return (
            isinstance(given, MapType)
            and accepts(given.key, wanted.key)
            and (accepts(given.value.type, wanted.value.type))
        )
    if isinstance(wanted, Scalar) and wanted.kind == "uint64" and isinstance(given, Scalar):
        return given.kind in _INTEGERS
    return holds(spark_type(wanted), given)


def _accepts_struct(given: StructType, wanted: StructType) -> bool:
    members = {field.name: field for field in wanted.fields}
    names = {field.name for field in given.fields}
    return all(
        field.name in members and accepts(field.type, members[field.name].type) for field in given.fields
    ) and not any(field.is_required and field.name not in names for field in wanted.fields)
