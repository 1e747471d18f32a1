"""Values in Protobuf's binary encoding: one message of the definition of their schema version."""

from __future__ import annotations

from typing import Any

from oncemq.protocol import errors
from oncemq.protocol.schema.definitions.protobuf import message_descriptor
from oncemq.protocol.schema.extras import require
from oncemq.protocol.schema.model import ListType, MapType, Scalar, Schema, StructType, Type
from oncemq.protocol.schema.values.json_values import JsonCodec

_WHAT = "a topic with values in Protobuf"


class ProtobufCodec:
    """Checks, encodes and decodes the values of a schema with the encoding `protobuf`."""

    def __init__(self, schema: Schema) -> None:
        factory = require("google.protobuf.message_factory", _WHAT)
        self._json = require("google.protobuf.json_format", _WHAT)
        self._message = require("google.protobuf.message", _WHAT)
        self._unknown = require("google.protobuf.unknown_fields", _WHAT)
        self._name = schema.message
        self._json_codec = JsonCodec(schema)
        self._fields = schema.fields
        self._class = factory.GetMessageClass(message_descriptor(schema.descriptors, schema.message))

    def problem(self, value: bytes) -> str | None:
        """Return why a value does not match. Fields that the definition does not have are named by their number."""
        try:
            message = self.parse(value)
        except errors.SchemaMismatch as error:
            return error.text
        for field in self._unknown.UnknownFieldSet(message):
            return f"field number {field.field_number}: the schema has no such field"
        return None

    def parse(self, value: bytes) -> Any:
        """Return the message of a value, as an object of the package protobuf. Raises SchemaMismatch."""
        message = self._class()
        try:
            message.ParseFromString(value)
        except self._message.DecodeError as error:
            raise errors.SchemaMismatch(f"the value is not a Protobuf message '{self._name}': {error}") from None
        missing = message.FindInitializationErrors()
        if missing:
            raise errors.SchemaMismatch(f"{missing[0]}: the field is missing, and required")
        return message

    def encode(self, plain: Any) -> bytes:
        """Encode an object, or a message of the package protobuf. Raises SchemaMismatch with the path of the field."""
        if isinstance(plain, self._message.Message):
            if plain.DESCRIPTOR.full_name != self._name:
                raise errors.SchemaMismatch(f"the value is a {plain.DESCRIPTOR.full_name}; the schema is {self._name}")
            return bytes(plain.SerializeToString())
        message = self._class()
        try:
            self._json.ParseDict(self._json_codec.checked(plain), message)
        except (self._json.ParseError, TypeError, ValueError) as error:
            raise errors.SchemaMismatch(f"the object is not a message '{self._name}': {error}") from None
        return bytes(message.SerializeToString())

    def decode(self, value: bytes) -> Any:
        """Return the message as JSON values, with the names of the definition. Raises SchemaMismatch."""
        found = self._json.MessageToDict(
            self.parse(value), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return _with_numbers(found, StructType(self._fields))


def _with_numbers(value: Any, kind: Type) -> Any:
    """Protobuf's JSON has integers of 64 bits as strings: turn them into numbers."""
    if isinstance(kind, StructType):
        known = {field.name: field.type for field in kind.fields}
        return {name: _with_numbers(each, known[name]) for name, each in value.items()}
    if isinstance(kind, ListType):
        return [_with_numbers(each, kind.item.type) for each in value]
    if isinstance(kind, MapType):
        return {key: _with_numbers(each, kind.value.type) for key, each in value.items()}
    return int(value) if isinstance(kind, Scalar) and kind.kind in ("int64", "uint64") else value
