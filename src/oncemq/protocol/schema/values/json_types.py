"""Python types for the fields of a schema, with which msgspec checks and decodes JSON at the speed of C.

The forms of values in JSON:

    integers, float, bool   as in JSON; a float may also be "NaN", "Infinity" or "-Infinity"
    string                  a string
    binary                  a string in base64 (RFC 4648, with padding)
    decimal                 a string: "9.50"
    date, time              ISO 8601: "2026-07-31", "09:30:00.250000"
    timestamp               ISO 8601 with a zone: "2026-07-31T09:30:00Z"
    timestamp_ntz           the same without a zone
    list, struct            an array, an object
    map                     an object; integer keys are strings of digits
"""

from __future__ import annotations

import datetime
import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from oncemq.protocol.schema import constraints
from oncemq.protocol.schema.model import Decimal, Field, ListType, MapType, Scalar, ScalarKind, StructType, Type


class UInt64(int):
    """An integer that msgspec's own bounds can't express. A field with limits has a subclass."""

    low = 0
    high = 2**64 - 1
    multiple_of = 1


_PATTERN_MAX = constraints.PATTERN_CHARACTERS_MAX


def dec_hook(kind: type, value: Any) -> Any:
    """Decode what msgspec doesn't know. Raises ValueError, which becomes a ValidationError with the path."""
    if issubclass(kind, UInt64):
        if type(value) is not int or not kind.low <= value <= kind.high:
            raise ValueError(f"Expected `int` from {kind.low} to {kind.high}, got {value!r:.40}")
        if value % kind.multiple_of:
            raise ValueError(f"Expected `int` that's a multiple of {kind.multiple_of}")
        return kind(value)
    raise NotImplementedError(kind)


#: float, or what JSON has no numbers for.
_Float = float | Literal["NaN", "Infinity", "-Infinity"]

_PLAIN: dict[ScalarKind, Any] = {
    "bool": bool,
    "float32": _Float,
    "float64": _Float,
    "string": str,
    "binary": bytes,
    "date": datetime.date,
    "time": Annotated[datetime.time, Meta(tz=False)],
    "timestamp": Annotated[datetime.datetime, Meta(tz=True)],
    "timestamp_ntz": Annotated[datetime.datetime, Meta(tz=False)],
}
_SIGNED: dict[ScalarKind, int] = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_UNSIGNED: dict[ScalarKind, int] = {"uint8": 8, "uint16": 16, "uint32": 32}
_BOUNDS: dict[ScalarKind, tuple[int, int]] = {
    **{kind: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for kind, bits in _SIGNED.items()},
    **{kind: (0, 2**bits - 1) for kind, bits in _UNSIGNED.items()},
}


def decimal_pattern(kind: Decimal) -> str:
    """Return the regular expression of a decimal's digits."""
    whole = kind.precision - kind.scale
    digits = rf"0*[0-9]{{1,{whole}}}" if whole else "0+"
    return rf"^-?{digits}(\.[0-9]{{1,{kind.scale}}})?\Z" if kind.scale else rf"^-?{digits}\Z"


def struct_of(name: str, fields: tuple[Field, ...]) -> type[msgspec.Struct]:
    """Return a struct whose JSON form is an object with these fields, and no others."""
    entries: list[Any] = []
    rename: dict[str, str] = {}
    for index, field in enumerate(fields):
        # Names of fields need not be identifiers.
        rename[f"f{index}"] = field.name
        kind = field_type(field)
        entries.append((f"f{index}", kind) if field.is_required else (f"f{index}", kind, None))
    # A default must not come before a field without one, unless all are by keyword.
    return msgspec.defstruct(name, entries, rename=rename, forbid_unknown_fields=True, gc=False, kw_only=True)


def field_type(field: Field) -> Any:
    """Return the Python type of a field's values."""
    kind = _type(field.type, dict(field.constraints))
    if constraints.ENUM in field.constraints:
        kind = Literal[tuple(value for value in field.constraints[constraints.ENUM] if value is not None)]
    return kind | None if field.nullable else kind


def _type(kind: Type, limits: dict[str, Any]) -> Any:
    if isinstance(kind, Scalar):
        return _scalar(kind.kind, limits)
    if isinstance(kind, Decimal):
        return Annotated[str, Meta(pattern=decimal_pattern(kind))]
    if isinstance(kind, ListType):
        return _annotated(list[field_type(kind.item)], constraints.meta_of(limits, constraints.OF_LISTS))  # type: ignore[misc]
    if isinstance(kind, MapType):
        key = _scalar(kind.key.kind, {})
        value = field_type(kind.value)
        return _annotated(dict[key, value], constraints.meta_of(limits, constraints.OF_MAPS))  # type: ignore[valid-type]
    assert isinstance(kind, StructType)
    return struct_of("Struct", kind.fields)


def _scalar(kind: ScalarKind, limits: dict[str, Any]) -> Any:
    if kind in _BOUNDS:
        low, high, multiple_of = _integer_limits(*_BOUNDS[kind], limits)
        return Annotated[int, Meta(ge=low, le=high, multiple_of=multiple_of if multiple_of > 1 else None)]
    if kind == "uint64":
        low, high, multiple_of = _integer_limits(UInt64.low, UInt64.high, limits)
        return type("UInt64", (UInt64,), {"low": low, "high": high, "multiple_of": multiple_of}) if limits else UInt64
    if kind in ("float32", "float64"):
        meta = constraints.meta_of(limits, constraints.OF_NUMBERS)
        return Annotated[float, Meta(**meta)] if meta else _PLAIN[kind]
    if kind == "string":
        meta = constraints.meta_of(limits, constraints.OF_STRINGS)
        if "pattern" in meta:
            meta["max_length"] = min(meta.get("max_length", _PATTERN_MAX), _PATTERN_MAX)
        return _annotated(str, meta)
    if kind == "binary":
        return _annotated(bytes, constraints.meta_of(limits, constraints.OF_BINARY))
    return _PLAIN[kind]


def _integer_limits(low: int, high: int, limits: dict[str, Any]) -> tuple[int, int, int]:
    """Combine the bounds of the type with the limits of the field: msgspec takes one lower and one upper bound. Limits
    of JSON Schema may have a fraction. Returns both bounds, and what a value must be a multiple of."""
    meta = constraints.meta_of(limits, constraints.OF_NUMBERS)
    lowest = max(low, math.ceil(meta.get("ge", low)), math.floor(meta.get("gt", low - 1)) + 1)
    highest = min(high, math.floor(meta.get("le", high)), math.ceil(meta.get("lt", high + 1)) - 1)
    multiple_of = meta.get("multiple_of", 1)
    if not isinstance(multiple_of, int) or multiple_of < 1:
        raise ValueError("multipleOf of an integer must be an integer above 0")
    return lowest, highest, multiple_of


def _annotated(kind: Any, meta: dict[str, Any]) -> Any:
    return Annotated[kind, Meta(**meta)] if meta else kind
