"""Protobuf messages as dicts with the values that Arrow takes: enums by name, well-known types as what they contain."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Any

_Get = Callable[[Any], Any]

#: Of FieldDescriptor.
_MESSAGE, _ENUM = 11, 14
_TIMESTAMP = "google.protobuf.Timestamp"


def message_reader(descriptor: Any) -> Callable[[Any], dict[str, Any]]:
    """Return what converts messages of a type. A field with presence that is not set is None."""
    getters = [(field.name, _getter(field)) for field in descriptor.fields]
    return lambda message: {name: get(message) for name, get in getters}


def _getter(field: Any) -> _Get:
    name = field.name
    if field.type == _MESSAGE and field.message_type.GetOptions().map_entry:
        convert = _converter(field.message_type.fields_by_name["value"])
        return lambda message: {key: convert(value) for key, value in getattr(message, name).items()}
    convert = _converter(field)
    if field.is_repeated:
        return lambda message: [convert(value) for value in getattr(message, name)]
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _converter(field: Any) -> _Get:
    if field.type == _ENUM:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    if field.type != _MESSAGE:
        return lambda value: value
    if field.message_type.full_name == _TIMESTAMP:
        return lambda moment: moment.ToDatetime(tzinfo=UTC)
    if field.message_type.full_name.startswith("google.protobuf."):
        return lambda wrapper: wrapper.value
    return message_reader(field.message_type)
