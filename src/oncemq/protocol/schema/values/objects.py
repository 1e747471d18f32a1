"""Values as Python objects: dataclasses, msgspec Structs, TypedDicts, pydantic models, dicts."""

from __future__ import annotations

import datetime
import decimal
from typing import Any, TypeVar

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.schema.model import Schema
from oncemq.protocol.schema.values.codec import codec_of

T = TypeVar("T")

_BUILTINS = (bytes, datetime.datetime, datetime.date, datetime.time, decimal.Decimal)


def decode_value(value: bytes, schema: Schema | None, as_type: type[T]) -> T:
    """Return a value as an object of a type. Without a schema, the value is JSON.

    Fields that the type does not have are ignored; fields that the value does not have get the default of the type.
    Raises SchemaMismatch.
    """
    try:
        if schema is None or schema.encoding == "json":
            return _from_json(value, as_type)
        return _from_plain(codec_of(schema).decode(value), as_type)
    except errors.SchemaMismatch:
        raise
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        name = getattr(as_type, "__name__", str(as_type))
        raise errors.SchemaMismatch(f"the value can't be read as {name}: {error}") from None


def _from_json(value: bytes, as_type: type[T]) -> T:
    validate = getattr(as_type, "model_validate_json", None)
    if validate is not None:
        found: T = validate(value)
        return found
    # Not strict, because "NaN" is how JSON writes it.
    return msgspec.json.decode(value, type=as_type, strict=False)


def _from_plain(value: Any, as_type: type[T]) -> T:
    validate = getattr(as_type, "model_validate", None)
    if validate is not None:
        found: T = validate(value)
        return found
    return msgspec.convert(value, as_type, strict=False, builtin_types=_BUILTINS)
