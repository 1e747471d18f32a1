"""Python objects as the plain values that encoders take: dicts, lists and scalars of Python's own types."""

from __future__ import annotations

import base64
import datetime
import decimal
from typing import Any

from oncemq.protocol.schema.model import Decimal, Field, ListType, MapType, Scalar, StructType, Type


def plain_of(value: Any) -> Any:
    """Return what msgspec can encode: a pydantic model as a dict, anything else as it is."""
    dump = getattr(value, "model_dump", None)
    return value if dump is None or isinstance(value, type) else dump(mode="python", by_alias=True)


def enc_hook(value: Any) -> Any:
    """Encode what msgspec does not know: a pydantic model inside another object."""
    found = plain_of(value)
    if found is value:
        raise TypeError(f"objects of type {type(value).__name__} are not supported")
    return found


def with_python_types(value: dict[str, Any], fields: tuple[Field, ...]) -> Any:
    """Return JSON values, which match the fields, with the Python types of times, decimals and bytes."""
    return _convert(value, StructType(fields))


def _convert(value: Any, kind: Type) -> Any:
    if value is None:
        return None
    if isinstance(kind, StructType):
        known = {field.name: field.type for field in kind.fields}
        return {name: _convert(each, known[name]) for name, each in value.items()}
    if isinstance(kind, ListType):
        return [_convert(each, kind.item.type) for each in value]
    if isinstance(kind, MapType):
        return {key: _convert(each, kind.value.type) for key, each in value.items()}
    if isinstance(kind, Decimal):
        return decimal.Decimal(value)
    return _scalar(value, kind)


def _scalar(value: Any, kind: Scalar) -> Any:
    if kind.kind == "binary":
        return base64.b64decode(value)
    if kind.kind == "date":
        return datetime.date.fromisoformat(value)
    if kind.kind == "time":
        return datetime.time.fromisoformat(value)
    if kind.kind in ("timestamp", "timestamp_ntz"):
        return datetime.datetime.fromisoformat(value)
    return float(value) if kind.kind in ("float32", "float64") else value
