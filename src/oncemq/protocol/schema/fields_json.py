"""The fields form of a definition, as JSON: `[{"name": "id", "type": "int64", "nullable": false}, …]`.

`type` is a text as in the fields form (fields_text.py), or one of `{"list": FIELD}`, `{"map": {"key": TYPE,
"value": FIELD}}` and `{"struct": [FIELD, …]}`, so that nested fields can have constraints. `nullable`, `default`,
`doc` and `constraints` are optional.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.schema.fields_text import DEPTH_MAX, parse_type, type_text
from oncemq.protocol.schema.model import (
    ITEM,
    VALUE,
    Field,
    ListType,
    MapType,
    Scalar,
    StructType,
    Type,
    nested_fields,
)


class _FieldJson(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    type: str | dict[str, Any]
    name: str = ""
    nullable: bool = True
    default: Any = None
    doc: str = ""
    constraints: dict[str, Any] = {}


def fields_to_builtins(fields: tuple[Field, ...]) -> list[dict[str, Any]]:
    """Return fields as JSON values. `fields_from_builtins` is the inverse."""
    return [_field_to_builtins(field) for field in fields]


def fields_from_builtins(value: Any, path: str = "", depth: int = 0) -> tuple[Field, ...]:
    """Return the fields that JSON values describe. Raises SchemaInvalid, which names the path."""
    if isinstance(value, dict) and set(value) == {"fields"}:
        value = value["fields"]
    if not isinstance(value, list):
        raise errors.SchemaInvalid(f"{path or 'the fields'}: expected a list of fields")
    fields = []
    for index, entry in enumerate(value):
        field = _field_from_builtins(entry, f"{path}[{index}]", depth)
        if not field.name:
            raise errors.SchemaInvalid(f"{path}[{index}]: the field has no name")
        fields.append(field)
    return tuple(fields)


def _field_to_builtins(field: Field, with_name: bool = True) -> dict[str, Any]:
    kind = _type_to_builtins(field.type)
    shown = _FieldJson(
        kind, field.name if with_name else "", field.nullable, field.default, field.doc, dict(field.constraints)
    )
    found: dict[str, Any] = msgspec.to_builtins(shown)
    return {"name": found.pop("name"), **found} if with_name else found


def _type_to_builtins(kind: Type) -> str | dict[str, Any]:
    if not _has_constraints(kind):
        return type_text(kind)
    if isinstance(kind, ListType):
        return {"list": _field_to_builtins(kind.item, with_name=False)}
    if isinstance(kind, MapType):
        return {"map": {"key": kind.key.kind, "value": _field_to_builtins(kind.value, with_name=False)}}
    assert isinstance(kind, StructType)
    return {"struct": fields_to_builtins(kind.fields)}


def _has_constraints(kind: Type) -> bool:
    return any(field.constraints or _has_constraints(field.type) for field in nested_fields(kind))


def _field_from_builtins(value: Any, path: str, depth: int, name: str = "") -> Field:
    if isinstance(value, str):
        value = {"type": value}
    try:
        entry = msgspec.convert(value, _FieldJson)
    except msgspec.ValidationError as error:
        raise errors.SchemaInvalid(f"{path}: {error}") from None
    kind = _type_from_builtins(entry.type, f"{path}.type", depth)
    return Field(name or entry.name, kind, entry.nullable, entry.default, entry.doc, entry.constraints)


def _type_from_builtins(value: str | dict[str, Any], path: str, depth: int) -> Type:
    if depth > DEPTH_MAX:
        raise errors.SchemaInvalid(f"{path}: types are nested more than {DEPTH_MAX} levels deep")
    if isinstance(value, str):
        try:
            return parse_type(value)
        except errors.SchemaInvalid as error:
            raise errors.SchemaInvalid(f"{path}: {error.text}") from None
    if set(value) == {"list"}:
        return ListType(_field_from_builtins(value["list"], f"{path}.list", depth + 1, ITEM))
    if set(value) == {"map"} and isinstance(value["map"], dict) and set(value["map"]) == {"key", "value"}:
        key = _type_from_builtins(value["map"]["key"], f"{path}.map.key", depth + 1)
        if not isinstance(key, Scalar):
            raise errors.SchemaInvalid(f"{path}.map.key: the key of a map must be a string or an integer")
        return MapType(key, _field_from_builtins(value["map"]["value"], f"{path}.map.value", depth + 1, VALUE))
    if set(value) == {"struct"}:
        return StructType(fields_from_builtins(value["struct"], f"{path}.struct", depth + 1))
    raise errors.SchemaInvalid(f"{path}: expected the text of a type, or an object with list, map or struct")
