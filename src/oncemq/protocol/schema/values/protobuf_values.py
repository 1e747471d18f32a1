"""Values in Protobuf's binary encoding: one message of the definition of their schema version."""

from __future__ import annotations

from typing import Any

from oncemq.protocol import errors
from oncemq.protocol.schema.definitions.protobuf import message_descriptor, message_fields
from oncemq.protocol.schema.extras import require
from oncemq.protocol.schema.model import (
    Field,
    ListType,
    MapType,
    Scalar,
    Schema,
    StructType,
    Type,
    nested_fields,
    same_types,
)
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
        descriptor = message_descriptor(schema.descriptors, schema.message)
        if not same_types(StructType(message_fields(descriptor)), StructType(schema.fields)):
            raise errors.SchemaInvalid("the fields of the schema are not those of its Protobuf message")
        self._has_times = _has_times(schema.fields)
        self._class = factory.GetMessageClass(descriptor)

    def problem(self, value: bytes) -> str | None:
        """Return why a value does not match. Fields that the definition does not have are named by their number."""
        try:
            message = self.parse(value)
        except errors.SchemaMismatch as error:
            return error.text
        for field in self._unknown.UnknownFieldSet(message):
            return f"field number {field.field_number}: the schema has no such field"
        size = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != size:
            return "a message inside the value has a field that the schema does not have"
        return self._time_problem(message) if self._has_times else None

    def _time_problem(self, message: Any) -> str | None:
        """A time stamp may have a year that no reader has."""
        try:
            self._json.MessageToDict(message)
        except (self._json.SerializeToJsonError, ValueError, OverflowError) as error:
            return str(error)
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
        message = self.parse(value)
        try:
            found = self._json.MessageToDict(
                message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
        except (self._json.SerializeToJsonError, ValueError, OverflowError) as error:
            raise errors.SchemaMismatch(str(error)) from None
        return _with_numbers(found, StructType(self._fields))


def _has_times(fields: tuple[Field, ...]) -> bool:
    return any(field.type == Scalar("timestamp") or _has_times(nested_fields(field.type)) for field in fields)


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
