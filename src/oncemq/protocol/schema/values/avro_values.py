"""Values in Avro's binary encoding, without a header: one record, written with the definition of its schema version."""

from __future__ import annotations

import decimal
import io
import json
from typing import Any

from oncemq.protocol import errors
from oncemq.protocol.schema.definitions.avro import parse_avro
from oncemq.protocol.schema.extras import require
from oncemq.protocol.schema.model import PRECISION_MAX, Schema, StructType, same_types
from oncemq.protocol.schema.values.json_values import JsonCodec
from oncemq.protocol.schema.values.python_values import with_python_types

_WHAT = "a topic with values in Avro"
#: The logical type that decimals are read as. The package's own decoder takes minutes for a decimal of a megabyte.
_DECIMAL = "oncemq-decimal"
_PATH = "oncemq-path"
_EXACT = decimal.Context(prec=PRECISION_MAX)


class AvroCodec:
    """Checks, encodes and decodes the values of a schema with the encoding `avro`."""

    def __init__(self, schema: Schema) -> None:
        self._avro = require("fastavro", _WHAT)
        self._fields = schema.fields
        self._json = JsonCodec(schema)
        try:
            definition = json.loads(schema.definition)
            self._parsed = self._avro.parse_schema(definition)
            self._read_as = self._avro.parse_schema(_with_bounded_decimals(definition))
            defined = parse_avro(schema.definition).fields
        except Exception as error:
            # The package raises exceptions of many kinds.
            raise errors.SchemaInvalid(f"the Avro definition is not valid: {error}") from None
        if not same_types(StructType(defined), StructType(schema.fields)):
            raise errors.SchemaInvalid("the fields of the schema are not those of its Avro definition")
        readers = require("fastavro.read", _WHAT).LOGICAL_READERS
        readers[f"bytes-{_DECIMAL}"] = readers[f"fixed-{_DECIMAL}"] = _read_decimal

    def problem(self, value: bytes) -> str | None:
        """Return why a value does not match. Avro has no names in its values: the reason is all that is known."""
        try:
            self._read(value)
        except errors.SchemaMismatch as error:
            return error.text
        return None

    def encode(self, plain: Any) -> bytes:
        """Encode an object. Raises SchemaMismatch with the path of the field."""
        record = with_python_types(self._json.checked(plain), self._fields)
        stream = io.BytesIO()
        try:
            self._avro.schemaless_writer(stream, self._parsed, record)
        except Exception as error:
            raise errors.SchemaMismatch(f"the object can't be written as Avro: {error}") from None
        return stream.getvalue()

    def decode(self, value: bytes) -> Any:
        """Return the record of a value. Raises SchemaMismatch."""
        return self._read(value)

    def _read(self, value: bytes) -> Any:
        stream = io.BytesIO(value)
        try:
            found = self._avro.schemaless_reader(stream, self._read_as, None)
        except errors.SchemaMismatch:
            raise
        except Exception as error:
            # A malformed value may end anywhere, and fails in as many ways.
            why = str(error) or type(error).__name__
            raise errors.SchemaMismatch(f"the value is not a record of the Avro definition: {why}") from None
        if stream.tell() != len(value):
            left = len(value) - stream.tell()
            raise errors.SchemaMismatch(f"the value is not a record of the Avro definition: {left} bytes are left over")
        return found


def _with_bounded_decimals(kind: Any, path: str = "") -> Any:
    """Return a definition whose decimals are read by `_read_decimal`, and have their path."""
    if isinstance(kind, list):
        return [_with_bounded_decimals(each, path) for each in kind]
    if not isinstance(kind, dict):
        return kind
    found = dict(kind)
    for name, suffix in (("type", ""), ("items", "[]"), ("values", "{}")):
        if name in found:
            found[name] = _with_bounded_decimals(found[name], path + suffix)
    if "fields" in found:
        prefix = f"{path}." if path else ""
        found["fields"] = [_with_bounded_decimals(each, prefix + each["name"]) for each in found["fields"]]
    if found.get("logicalType") == "decimal":
        found |= {"logicalType": _DECIMAL, _PATH: path}
    return found


def _read_decimal(raw: bytes, kind: dict[str, Any], _: Any = None) -> decimal.Decimal:
    number, digits = int.from_bytes(raw, "big", signed=True), kind["precision"]
    if abs(number) >= 10**digits:
        raise errors.SchemaMismatch(f"{kind[_PATH]}: a decimal has more than {digits} digits")
    return decimal.Decimal(number).scaleb(-kind.get("scale", 0), _EXACT)
