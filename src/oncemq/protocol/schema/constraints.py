"""Limits on the values of a field, with the names and meanings of JSON Schema.

Writers check them. Compatibility and readers ignore them: a value that was accepted stays readable.
"""

from __future__ import annotations

from typing import Any, Final

#: The only allowed values.
ENUM: Final = "enum"
#: The number of a Protobuf field. It is not a limit, but part of the field's identity.
NUMBER: Final = "protobuf.number"

#: Names of constraints → of the attributes of `msgspec.Meta`.
OF_NUMBERS: Final[dict[str, str]] = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
}
OF_STRINGS: Final[dict[str, str]] = {"minLength": "min_length", "maxLength": "max_length", "pattern": "pattern"}
OF_BINARY: Final[dict[str, str]] = {"minLength": "min_length", "maxLength": "max_length"}
OF_LISTS: Final[dict[str, str]] = {"minItems": "min_length", "maxItems": "max_length"}
OF_MAPS: Final[dict[str, str]] = {"minProperties": "min_length", "maxProperties": "max_length"}


def meta_of(constraints: dict[str, Any] | Any, names: dict[str, str]) -> dict[str, Any]:
    """Return the attributes of `msgspec.Meta` for those constraints that apply."""
    return {attribute: constraints[name] for name, attribute in names.items() if name in constraints}
