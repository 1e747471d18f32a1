"""Values in JSON: checked against a schema, encoded from Python objects, decoded to them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.schema.fields_text import type_text
from oncemq.protocol.schema.model import Decimal, Field, ListType, MapType, Scalar, Schema, StructType, nested_fields
from oncemq.protocol.schema.values.json_types import dec_hook, struct_of
from oncemq.protocol.schema.values.python_values import enc_hook, plain_of

_encode = msgspec.json.Encoder(enc_hook=enc_hook).encode
_decode = msgspec.json.Decoder().decode

_AT = re.compile(r"(?s)(.*) - at `\$?(.*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_KEY = "key` in `$"
#: A reason may quote the value, which has any length, and goes into replies, logs and headers.
_REASON_CHARACTERS_MAX = 1_000
#: What the objects of one value may take in memory: "{}" is short, and a struct takes space for each of its fields.
_OBJECTS_BYTES_MAX = 256 * 1024 * 1024
_UNCOUNTED_BYTES = 64 * 1024
_STEP = re.compile(r"\.([^.\[\]]+)|(\[[^\]]*\])")


class JsonCodec:
    """Checks, encodes and decodes the values of a schema with the encoding `json`."""

    def __init__(self, schema: Schema) -> None:
        self._fields = schema.fields
        self._object_bytes = 16 + 8 * _widest(schema.fields)
        #: Decodes a value to a struct whose member i, `f<i>`, is field i. Raises a MsgspecError if it does not match.
        self.parse: Callable[[bytes], msgspec.Struct] = msgspec.json.Decoder(
            struct_of("Value", schema.fields), dec_hook=dec_hook
        ).decode

    def problem(self, value: bytes) -> str | None:
        """Return why a value does not match: the path of the field and the reason."""
        if len(value) > _UNCOUNTED_BYTES and value.count(b"{") * self._object_bytes > _OBJECTS_BYTES_MAX:
            return "the value has more objects than can be checked"
        try:
            self.parse(value)
        except msgspec.ValidationError as error:
            return shortened(_explain(str(error), self._fields))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return f"the value is not JSON: {error}"
        return None

    def encode(self, plain: Any) -> bytes:
        """Encode an object that msgspec knows: a dict, a Struct, a dataclass. Raises SchemaMismatch."""
        try:
            return _encode(plain_of(plain))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise errors.SchemaMismatch(f"the object can't be written as JSON: {error}") from None

    def checked(self, plain: Any) -> Any:
        """Return an object as JSON values, after it was checked. Raises SchemaMismatch with the path of the field."""
        written = self.encode(plain)
        problem = self.problem(written)
        if problem is not None:
            raise errors.SchemaMismatch(problem)
        return _decode(written)

    def decode(self, value: bytes) -> Any:
        """Return the value as JSON values: dicts, lists, strings, numbers. Raises SchemaMismatch."""
        try:
            found = _decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise errors.SchemaMismatch(f"the value is not JSON: {error}") from None
        return found


def shortened(reason: str) -> str:
    """Return the beginning of a long reason."""
    return reason if len(reason) <= _REASON_CHARACTERS_MAX else f"{reason[:_REASON_CHARACTERS_MAX]}…"


def _widest(fields: tuple[Field, ...]) -> int:
    """Return the number of fields of the largest struct."""
    return max(len(fields), *(_widest(nested_fields(field.type)) for field in fields), 0)


def _explain(text: str, fields: tuple[Field, ...]) -> str:
    """Turn msgspec's message into: path, reason, and the type that the schema has there."""
    found = _AT.fullmatch(text)
    reason, path = (found.group(1), found.group(2).lstrip(".")) if found else (text, "")
    if path.startswith(_KEY):
        return f"{path.removeprefix(_KEY).lstrip('.')}: a key of the map does not match: {reason.replace('`', '')}"
    prefix = f"{path}." if path else ""
    if unknown := _UNKNOWN.fullmatch(reason):
        return f"{prefix}{unknown.group(1)}: the schema has no such field"
    if missing := _MISSING.fullmatch(reason):
        return f"{prefix}{missing.group(1)}: the field is missing, and not nullable"
    reason = reason[:1].lower() + reason[1:].replace("`", "")
    field = _field_at(fields, path)
    if field is None:
        return f"{path or 'the value'}: {reason}"
    if isinstance(field.type, Decimal):
        reason = 'expected a decimal as a string, like "9.50"'
    elif isinstance(field.type, Scalar) and field.type.kind.startswith("float") and "enum" in reason:
        reason = "expected a number, got str"
    return f"{path}: {reason}; the schema says {type_text(field.type)}{'' if field.nullable else ' not null'}"


def _field_at(fields: tuple[Field, ...], path: str) -> Field | None:
    """Return the field at a path like `items[...].price`."""
    field: Field | None = None
    for name, index in _STEP.findall(f".{path}" if path and not path.startswith("[") else path):
        kind = field.type if field is not None else StructType(fields)
        if name and isinstance(kind, StructType):
            field = next((each for each in kind.fields if each.name == name), None)
        elif index and isinstance(kind, ListType):
            field = kind.item
        elif index and isinstance(kind, MapType):
            field = kind.value
        else:
            return None
        if field is None:
            return None
    return field
