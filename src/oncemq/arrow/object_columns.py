"""Decoded values as Arrow columns: one pass over the values for each field, and none over the fields of each value.

Values of different encodings differ in how a member of an object is found (`Member`), and in some scalars, which are
converted where Arrow does not take them: text for decimals, "NaN" for floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

from oncemq.arrow.nullability import retyped
from oncemq.protocol.schema import Decimal, Field, ListType, Scalar, StructType, Type
from oncemq.protocol.schema.arrow import field_to_arrow, type_to_arrow

#: Field and its index → what returns the field's value of an object, or None.
Member = Callable[[Field, int], Callable[[Any], Any]]


def object_columns(objects: Sequence[Any], fields: tuple[Field, ...], member: Member) -> list[Any]:
    """Return a column for each field. An object may be None: then all its values are null."""
    return [_member_column(objects, field, index, member) for index, field in enumerate(fields)]


def value_column(values: Sequence[Any], field: Field, member: Member) -> Any:
    """Return a column of the values of one field."""
    return _column(values, field.type, member)


def _member_column(objects: Sequence[Any], field: Field, index: int, member: Member) -> Any:
    get = member(field, index)
    try:
        values = list(map(get, objects))
    except (AttributeError, TypeError):
        # There are nulls among them.
        values = [None if each is None else get(each) for each in objects]
    return _column(values, field.type, member)


def _column(values: Sequence[Any], kind: Type, member: Member) -> Any:
    if isinstance(kind, Decimal):
        return _decimals(values, kind)
    if isinstance(kind, Scalar):
        return _scalars(values, kind)
    if isinstance(kind, StructType):
        members = [_member_column(values, field, index, member) for index, field in enumerate(kind.fields)]
        missing = pa.array([value is None for value in values], pa.bool_())
        loose = [field_to_arrow(field).with_nullable(True) for field in kind.fields]
        return retyped(pa.StructArray.from_arrays(members, fields=loose, mask=missing), type_to_arrow(kind))
    offsets = _offsets(values)
    if isinstance(kind, ListType):
        items = list(chain.from_iterable(value for value in values if value is not None))
        return pa.ListArray.from_arrays(offsets, _column(items, kind.item.type, member), type=type_to_arrow(kind))
    keys = _column(list(chain.from_iterable(value for value in values if value)), kind.key, member)
    items = list(chain.from_iterable(value.values() for value in values if value))
    return pa.MapArray.from_arrays(offsets, keys, _column(items, kind.value.type, member), type=type_to_arrow(kind))


def _offsets(values: Sequence[Any]) -> Any:
    """The offsets of lists or maps. A null one has no offset."""
    ends = [0, *accumulate(0 if value is None else len(value) for value in values)]
    if None not in values:
        return pa.array(ends, pa.int32())
    starts = [None if value is None else start for value, start in zip(values, ends, strict=False)]
    return pa.array([*starts, ends[-1]], pa.int32())


def _scalars(values: Sequence[Any], kind: Scalar) -> Any:
    arrow_type = type_to_arrow(kind)
    if kind.kind in ("float32", "float64") and any(isinstance(value, str) for value in values):
        values = [float(value) if isinstance(value, str) else value for value in values]
    return pa.array(values, arrow_type)


def _decimals(values: Sequence[Any], kind: Decimal) -> Any:
    if any(isinstance(value, str) for value in values):
        return pa.array(values, pa.string()).cast(type_to_arrow(kind))
    return pa.array(values, type_to_arrow(kind))
