"""Schemas as definitions in other languages: JSON Schema and Avro. The fields form is in fields_text.py."""

from __future__ import annotations

import base64
import re
from typing import Any

from oncemq.protocol import errors
from oncemq.protocol.schema.constraints import ENUM, NUMBER
from oncemq.protocol.schema.definitions.json_schema import TYPE_KEYWORD
from oncemq.protocol.schema.fields_text import type_text
from oncemq.protocol.schema.model import Decimal, Field, ListType, MapType, Scalar, ScalarKind, Schema, StructType, Type
from oncemq.protocol.schema.values.json_types import decimal_pattern

_JSON_SCHEMA: dict[ScalarKind, dict[str, Any]] = {
    "bool": {"type": "boolean"},
    "int64": {"type": "integer"},
    "float64": {"type": "number"},
    "string": {"type": "string"},
    "binary": {"type": "string", "contentEncoding": "base64"},
    "date": {"type": "string", "format": "date"},
    "timestamp": {"type": "string", "format": "date-time"},
    "time": {"type": "string", "format": "time"},
    "timestamp_ntz": {"type": "string"},
    "float32": {"type": "number"},
}


def to_json_schema(schema: Schema) -> dict[str, Any]:
    """Return the schema as JSON Schema. Types that it has no word for are in the keyword `x-oncemq-type`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_object(schema.fields)}


def _object(fields: tuple[Field, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": {field.name: _property(field) for field in fields}}
    required = [field.name for field in fields if field.is_required]
    if required:
        found["required"] = required
    found["additionalProperties"] = False
    return found


def _property(field: Field) -> dict[str, Any]:
    found = {**_json_type(field.type), **{key: each for key, each in field.constraints.items() if key != NUMBER}}
    if field.nullable:
        found["type"] = [found["type"], "null"]
        if ENUM in found:
            found[ENUM] = [*found[ENUM], None]
    if field.default is not None:
        found["default"] = field.default
    if field.doc:
        found["description"] = field.doc
    return found


def _json_type(kind: Type) -> dict[str, Any]:
    if isinstance(kind, ListType):
        return {"type": "array", "items": _property(kind.item)}
    if isinstance(kind, MapType):
        found = {"type": "object", "additionalProperties": _property(kind.value)}
        return found if kind.key == Scalar("string") else {**found, TYPE_KEYWORD: type_text(kind)}
    if isinstance(kind, StructType):
        return _object(kind.fields)
    if isinstance(kind, Decimal):
        return {"type": "string", "pattern": decimal_pattern(kind).replace(r"\Z", "$"), TYPE_KEYWORD: type_text(kind)}
    found = dict(_JSON_SCHEMA.get(kind.kind, {"type": "integer"}))
    if kind.kind in ("timestamp_ntz", "float32") or (found == {"type": "integer"} and kind.kind != "int64"):
        found[TYPE_KEYWORD] = kind.kind
    return found


_AVRO: dict[ScalarKind, Any] = {
    "bool": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "uint8": "int",
    "uint16": "int",
    "uint32": "long",
    "float32": "float",
    "float64": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def to_avro(schema: Schema, name: str = "Value") -> dict[str, Any]:
    """Return the schema as an Avro record. Raises SchemaInvalid for what Avro can't express, with the path."""
    return _record(schema.fields, name, "")


def _record(fields: tuple[Field, ...], name: str, path: str) -> dict[str, Any]:
    entries = []
    for field in fields:
        where = f"{path}.{field.name}" if path else field.name
        if not _NAME.fullmatch(field.name):
            raise errors.SchemaInvalid(f"{where}: Avro's names have only letters, digits and '_'")
        entry: dict[str, Any] = {"name": field.name, "type": _avro_field(field, f"{name}_{field.name}", where)}
        if field.default is not None:
            entry["default"] = _avro_default(field.type, field.default, where)
        elif field.nullable:
            entry["default"] = None
        if field.doc:
            entry["doc"] = field.doc
        entries.append(entry)
    return {"type": "record", "name": name, "fields": entries}


def _avro_field(field: Field, name: str, path: str) -> Any:
    kind = _avro_type(field, name, path)
    if not field.nullable:
        return kind
    # Avro wants the type of the default first.
    return ["null", kind] if field.default is None else [kind, "null"]


def _avro_type(field: Field, name: str, path: str) -> Any:
    kind = field.type
    if isinstance(kind, StructType):
        return _record(kind.fields, name, path)
    if isinstance(kind, ListType):
        return {"type": "array", "items": _avro_field(kind.item, f"{name}_item", f"{path}[]")}
    if isinstance(kind, MapType):
        if kind.key != Scalar("string"):
            raise errors.SchemaInvalid(f"{path}: the keys of Avro's maps are strings, not {kind.key.kind}")
        return {"type": "map", "values": _avro_field(kind.value, f"{name}_value", f"{path}{{}}")}
    if isinstance(kind, Decimal):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    symbols = field.constraints.get(ENUM)
    if kind.kind == "string" and symbols and all(_NAME.fullmatch(str(each)) for each in symbols):
        return {"type": "enum", "name": name, "symbols": list(symbols)}
    if kind.kind not in _AVRO:
        raise errors.SchemaInvalid(f"{path}: Avro can't express {kind.kind}")
    return _AVRO[kind.kind]


def _avro_default(kind: Type, value: Any, path: str) -> Any:
    if isinstance(kind, Scalar) and kind.kind == "binary":
        return base64.b64decode(value).decode("latin-1")
    if isinstance(kind, Decimal) or (isinstance(kind, Scalar) and kind.kind in ("date", "time")):
        raise errors.SchemaInvalid(f"{path}: a default of type {type_text(kind)} can't be written in Avro")
    return value
