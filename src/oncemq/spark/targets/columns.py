"""The columns of a target against those of the rows: which columns are added, and which rows are refused.

A target only grows. A column that the rows do not have stays, and is null in new rows. A column that the target does
not have is added, if that is allowed (`evolve: add`). A column with another type is refused, because no reader could
read both. All columns are nullable, since old rows do not have a new column. The type of a column includes its nested
fields: a struct with another field is another type.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from oncemq.protocol import errors


def nullable(schema: StructType) -> StructType:
    """The same columns with everything nullable and without metadata, as Spark's own file sinks store them."""
    return StructType([StructField(field.name, _nullable(field.dataType)) for field in schema.fields])


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return nullable(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def added_columns(known: StructType, rows: StructType, target: str, *, evolve: bool) -> list[StructField]:
    """The columns of the rows that the target must get. `target` names it in errors: `the Delta table /lake/orders`.

    Raises SettingInvalid if a column has another type, or if there is a new column and `evolve` is not set."""
    columns = {field.name: field for field in nullable(known).fields}
    folded = {name.lower(): name for name in columns}
    added = []
    for field in nullable(rows).fields:
        found = columns.get(field.name)
        if found is not None:
            _check_type(field, found.dataType, target)
            continue
        _check_case(field.name, folded, target)
        if not evolve:
            raise missing_column(field.name, target)
        folded[field.name.lower()] = field.name
        added.append(field)
    return added


def missing_column(name: str, target: str) -> errors.SettingInvalid:
    return errors.SettingInvalid(
        f"{target} has no column {name!r}: write `evolve: add` to add such columns, or leave the column out of the rows"
    )


def _check_type(field: StructField, known: DataType, target: str) -> None:
    if field.dataType != known:
        raise changed_type(field.name, target, known.simpleString(), field.dataType.simpleString())


def changed_type(name: str, target: str, known: str, wanted: str) -> errors.SettingInvalid:
    return errors.SettingInvalid(
        f"the column {name!r} of {target} has the type {known}, which can't store the rows' type {wanted}: cast the "
        "column, give it another name, or write to another target"
    )


def _check_case(name: str, folded: dict[str, str], target: str) -> None:
    """Spark, Delta and many readers ignore the case of names."""
    other = folded.get(name.lower())
    if other is not None:
        raise errors.SettingInvalid(
            f"the column {name!r} differs from {other!r} of {target} only in upper and lower case, which most readers "
            "ignore: use the same name"
        )


def extended(known: StructType, added: Iterable[StructField]) -> StructType:
    return StructType([*nullable(known).fields, *added])
