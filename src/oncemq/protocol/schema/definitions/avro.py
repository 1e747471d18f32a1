"""Avro definitions (JSON) as schemas, and schemas as Avro definitions. Values are in avro_values.py."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from typing import Any, NoReturn

from oncemq.protocol import errors
from oncemq.protocol.schema.constraints import ENUM
from oncemq.protocol.schema.model import (
    ITEM,
    VALUE,
    Decimal,
    Encoding,
    Field,
    ListType,
    MapType,
    Scalar,
    ScalarKind,
    Schema,
    StructType,
    Type,
)

_PRIMITIVES: dict[str, ScalarKind] = {
    "boolean": "bool",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL: dict[str, ScalarKind] = {
    "date": "date",
    "time-millis": "time",
    "time-micros": "time",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "uuid": "string",
}
_EPOCH = datetime.datetime(1970, 1, 1)
_NO_DEFAULT = object()


def parse_avro(text: str, encoding: Encoding = "avro") -> Schema:
    """Return the schema of an Avro definition. Raises SchemaInvalid, which names the path of the field."""
    try:
        definition = json.loads(text)
    except ValueError as error:
        raise errors.SchemaInvalid(f"the Avro definition is not JSON: {error}") from None
    kind, _, _ = _Reader().type(definition, "", "")
    if not isinstance(kind, StructType):
        raise errors.SchemaInvalid("the values of a topic are records: the Avro definition must be of a record")
    return Schema(kind.fields, encoding, text, "avro")


def _fail(path: str, why: str) -> NoReturn:
    raise errors.SchemaInvalid(f"{path or 'the definition'}: {why}")


class _Reader:
    """Converts types. It knows the named types that were defined so far."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Type, dict[str, Any]]] = {}
        self._open: set[str] = set()

    def type(self, value: Any, path: str, namespace: str) -> tuple[Type, bool, dict[str, Any]]:
        """Return a type, whether it is nullable, and the constraints of its values."""
        if isinstance(value, list):
            return self._union(value, path, namespace)
        if isinstance(value, str):
            kind, constraints = self._name(value, path, namespace)
            return kind, False, constraints
        if not isinstance(value, dict) or "type" not in value:
            _fail(path, "expected the name of a type, an object with `type`, or a union")
        kind, constraints = self._object(value, path, namespace)
        return kind, False, constraints

    def _union(self, value: list[Any], path: str, namespace: str) -> tuple[Type, bool, dict[str, Any]]:
        others = [each for each in value if each != "null"]
        if len(others) != 1:
            _fail(path, "a schema can't express a union of several types; only null and one other type")
        kind, nullable, constraints = self.type(others[0], path, namespace)
        return kind, nullable or len(others) < len(value), constraints

    def _name(self, name: str, path: str, namespace: str) -> tuple[Type, dict[str, Any]]:
        if name in _PRIMITIVES:
            return Scalar(_PRIMITIVES[name]), {}
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._named.get(full) or self._named.get(name)
        if found is not None:
            return found
        if full in self._open or name in self._open:
            _fail(path, f"'{name}' contains itself; a schema can't be recursive")
        return _fail(path, f"'{name}' is not a type that a schema can express")

    def _object(self, value: dict[str, Any], path: str, namespace: str) -> tuple[Type, dict[str, Any]]:
        kind = value["type"]
        if isinstance(kind, dict | list):
            found, nullable, constraints = self.type(kind, path, namespace)
            if nullable:
                _fail(path, "a union must not be inside another type object")
            return found, constraints
        if kind in ("record", "enum", "fixed"):
            return self._define(kind, value, path, namespace)
        if kind == "array":
            return ListType(self._nested(ITEM, value.get("items"), f"{path}[]", namespace)), {}
        if kind == "map":
            return MapType(Scalar("string"), self._nested(VALUE, value.get("values"), f"{path}{{}}", namespace)), {}
        return _logical(value, path) or self._name(kind, path, namespace)

    def _nested(self, name: str, value: Any, path: str, namespace: str) -> Field:
        kind, nullable, constraints = self.type(value, path, namespace)
        return Field(name, kind, nullable, constraints=constraints)

    def _define(self, kind: str, value: dict[str, Any], path: str, namespace: str) -> tuple[Type, dict[str, Any]]:
        name = value.get("name", "")
        namespace = value.get("namespace", name.rpartition(".")[0] or namespace)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if not name:
            _fail(path, f"the {kind} has no name")
        self._open.add(full)
        if kind == "record":
            found: tuple[Type, dict[str, Any]] = (self._record(value, path, namespace), {})
        elif kind == "enum":
            found = (Scalar("string"), {ENUM: list(value.get("symbols", []))})
        else:
            size = value.get("size")
            if not isinstance(size, int) or size < 1:
                # Any number of values of 0 bytes would fit into a small message.
                _fail(path, "the size of a fixed must be a number above 0")
            found = _logical(value, path) or (Scalar("binary"), {"minLength": size, "maxLength": size})
        self._open.discard(full)
        self._named[full] = found
        return found

    def _record(self, value: dict[str, Any], path: str, namespace: str) -> StructType:
        fields = []
        for entry in value.get("fields", []):
            where = f"{path}.{entry.get('name', '')}" if path else entry.get("name", "")
            kind, nullable, constraints = self.type(entry.get("type"), where, namespace)
            default = entry.get("default", _NO_DEFAULT)
            fields.append(
                Field(
                    entry["name"],
                    kind,
                    nullable,
                    None if default is _NO_DEFAULT or default is None else _default(kind, default, where),
                    entry.get("doc", ""),
                    constraints,
                )
            )
        return StructType(tuple(fields))


def _logical(value: dict[str, Any], path: str) -> tuple[Type, dict[str, Any]] | None:
    name = value.get("logicalType")
    if name is None:
        return None
    if name == "decimal":
        return Decimal(int(value.get("precision", 0)), int(value.get("scale", 0))), {}
    if name in _LOGICAL:
        return Scalar(_LOGICAL[name]), {}
    return _fail(path, f"a schema can't express the logical type '{name}'")


def _default(kind: Type, value: Any, path: str) -> Any:
    """Convert a default from Avro's form to the form that it has in JSON values."""
    if isinstance(kind, Decimal):
        number = int.from_bytes(str(value).encode("latin-1"), "big", signed=True)
        return str(decimal.Decimal(number).scaleb(-kind.scale))
    if isinstance(kind, Scalar):
        if kind.kind == "binary":
            return base64.b64encode(str(value).encode("latin-1")).decode()
        if kind.kind == "date":
            return (_EPOCH + datetime.timedelta(days=value)).date().isoformat()
        if kind.kind in ("time", "timestamp", "timestamp_ntz"):
            _fail(path, "a default of a time can't be converted; leave it out")
    if isinstance(kind, StructType):
        return {
            field.name: _default(field.type, value[field.name], path) for field in kind.fields if field.name in value
        }
    if isinstance(kind, ListType):
        return [_default(kind.item.type, each, path) for each in value]
    if isinstance(kind, MapType):
        return {key: _default(kind.value.type, each, path) for key, each in value.items()}
    return value
