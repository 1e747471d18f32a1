"""Types that differ only in what may be null. Arrow's casts count the members of a null struct as nulls, although they
mean nothing; so values are cast to types that allow nulls everywhere, and get their own types afterwards."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def with_nulls(kind: Any) -> Any:
    """Return a type whose parts are all nullable."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_nulls(field.type)).with_nullable(True) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(with_nulls(kind.item_type)).with_nullable(True))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(with_nulls(kind.value_type)).with_nullable(True))
    return kind


def retyped(array: Any, kind: Any) -> Any:
    """Return an array of the type `with_nulls(kind)` as one of `kind`, without a copy. It checks no values."""
    if array.type == kind or not pa.types.is_nested(kind):
        return array
    if array.offset:
        array = pa.concat_arrays([array])
    if pa.types.is_struct(kind):
        parts = [retyped(array.field(index), kind.field(index).type) for index in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], children=parts)
    if pa.types.is_map(kind):
        parts = [retyped(array.keys, kind.key_type), retyped(array.items, kind.item_type)]
        entries = pa.struct([kind.key_field, kind.item_field])
        parts = [pa.Array.from_buffers(entries, len(parts[0]), [None], children=parts)]
    else:
        parts = [retyped(array.values, kind.value_type)]
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], children=parts)
