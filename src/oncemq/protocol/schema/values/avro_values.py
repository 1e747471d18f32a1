"""Values in Avro's binary encoding, without a header: one record, written with the definition of its schema version."""

from __future__ import annotations

import io
import json
from typing import Any

from oncemq.protocol import errors
from oncemq.protocol.schema.extras import require
from oncemq.protocol.schema.model import Schema
from oncemq.protocol.schema.values.json_values import JsonCodec
from oncemq.protocol.schema.values.python_values import with_python_types

_WHAT = "a topic with values in Avro"


class AvroCodec:
    """Checks, encodes and decodes the values of a schema with the encoding `avro`."""

    def __init__(self, schema: Schema) -> None:
        self._avro = require("fastavro", _WHAT)
        self._fields = schema.fields
        self._json = JsonCodec(schema)
        try:
            self._parsed = self._avro.parse_schema(json.loads(schema.definition))
        except Exception as error:
            # The package raises exceptions of many kinds.
            raise errors.SchemaInvalid(f"the Avro definition is not valid: {error}") from None

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
            found = self._avro.schemaless_reader(stream, self._parsed, None)
        except Exception as error:
            # A malformed value may end anywhere, and fails in as many ways.
            why = str(error) or type(error).__name__
            raise errors.SchemaMismatch(f"the value is not a record of the Avro definition: {why}") from None
        if stream.tell() != len(value):
            left = len(value) - stream.tell()
            raise errors.SchemaMismatch(f"the value is not a record of the Avro definition: {left} bytes are left over")
        return found
