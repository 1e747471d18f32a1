"""JSON schemas as text: the type of a value, the fields of an object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

Json = dict[str, Any]

#: Nested objects are shown to this depth.
_DEPTH_MAX = 3


class Field(msgspec.Struct, frozen=True):
    name: str
    type: str
    description: str
    is_required: bool


def pretty(value: Any) -> str:
    """Return an example as text: text as it is, any other value as JSON."""
    return value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def resolved(document: Json, schema: Json) -> Json:
    """Return the schema that a reference points to."""
    while "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def type_text(schema: Json) -> str:
    """Return a schema's type, bounds and default."""
    parts = [_type(schema)]
    parts += [f"{words} {schema[name]}" for name, words in _BOUNDS.items() if schema.get(name, _BEYOND) != _BEYOND]
    if schema.get("default") not in (None, "", [], {}):
        parts.append(f"default {msgspec.json.encode(schema['default']).decode()}")
    return ", ".join(parts)


#: A bound that is the maximum of an integer is not shown.
_BEYOND = 2**63 - 1
_BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "above",
    "exclusiveMaximum": "below",
    "minLength": "length at least",
    "maxLength": "length at most",
    "minItems": "at least",
    "maxItems": "at most",
}


def _type(schema: Json) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " or ".join(msgspec.json.encode(value).decode() for value in schema["enum"])
    if "const" in schema:
        return msgspec.json.encode(schema["const"]).decode()
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("contentEncoding") == "base64":
        return "text in base64"
    kind = schema.get("type", "anything")
    return "text" if kind == "string" else str(kind)


def fields_of(document: Json, schema: Json, prefix: str = "", depth: int = 1) -> Iterator[Field]:
    """Yield the fields of an object, and those of nested objects with dotted names; `[]` stands for each item of a
    list."""
    schema = resolved(document, schema)
    if schema.get("type") == "array":
        yield from fields_of(document, schema.get("items", {}), f"{prefix}[]", depth)
        return
    for name, inner in schema.get("properties", {}).items():
        full = f"{prefix}.{name}" if prefix else name
        described = inner.get("description", "")
        yield Field(full, type_text(inner), described, name in schema.get("required", ()))
        if depth < _DEPTH_MAX:
            yield from fields_of(document, _inside(inner), full, depth + 1)


def _inside(schema: Json) -> Json:
    """Return the schema that has the fields: for an optional object, that of the object."""
    choices = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return choices[0] if len(choices) == 1 else schema
