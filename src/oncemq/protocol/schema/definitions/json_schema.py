"""JSON Schema definitions as schemas.

A schema has named fields of one type each. So an object has exactly its properties: other properties are not allowed,
whether or not the definition says so. Keywords that a schema can't express are refused with their path; limits on
values (`minimum`, `pattern`, `enum`, …) become constraints.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from oncemq.protocol import errors
from oncemq.protocol.schema import constraints
from oncemq.protocol.schema.fields_text import parse_type
from oncemq.protocol.schema.model import (
    ITEM,
    VALUE,
    Decimal,
    Field,
    ListType,
    MapType,
    Scalar,
    ScalarKind,
    Schema,
    StructType,
)
from oncemq.protocol.schema.model import Type as SchemaType
from oncemq.protocol.schema.validate import FieldCount

#: The type of the fields form, for what JSON Schema has no word for.
TYPE_KEYWORD = "x-oncemq-type"

_FORMATS: dict[tuple[str, str], ScalarKind] = {
    ("string", "date"): "date",
    ("string", "time"): "time",
    ("string", "date-time"): "timestamp",
    ("string", "byte"): "binary",
    ("integer", "int32"): "int32",
    ("integer", "int64"): "int64",
    ("number", "float"): "float32",
    ("number", "double"): "float64",
}
_SCALARS: dict[str, ScalarKind] = {
    "string": "string",
    "integer": "int64",
    "number": "float64",
    "boolean": "bool",
}
_LIMITS = {
    **dict.fromkeys(constraints.OF_NUMBERS),
    **dict.fromkeys(constraints.OF_STRINGS),
    **dict.fromkeys(constraints.OF_LISTS),
    **dict.fromkeys(constraints.OF_MAPS),
}
#: References and unions that are followed for all fields together: a definition can use each of its own many times.
_STEPS_MAX = 10_000
#: Keywords that say nothing about which values are valid, and those that are understood.
_IGNORED = frozenset(
    ("$schema", "$id", "$comment", "$defs", "definitions", "title", "examples", "example", "deprecated")
)
_IGNORED_ALSO = frozenset(("readOnly", "writeOnly", "contentMediaType"))
_UNDERSTOOD = frozenset(
    ("type", "properties", "required", "items", "additionalProperties", "format", "contentEncoding", "description",
     "default", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "nullable")
)  # fmt: skip


def parse_json_schema(text: str) -> Schema:
    """Return the schema of a JSON Schema definition. Raises SchemaInvalid, which names the path."""
    try:
        definition = json.loads(text)
    except ValueError as error:
        raise errors.SchemaInvalid(f"the JSON Schema is not JSON: {error}") from None
    field = _Reader(definition).field("value", definition, "", required=True, refs=())
    if not isinstance(field.type, StructType):
        raise errors.SchemaInvalid("the values of a topic are objects: the JSON Schema must be of an object")
    return Schema(field.type.fields, "json", text, "json-schema")


def _fail(path: str, why: str) -> NoReturn:
    raise errors.SchemaInvalid(f"{path or 'the definition'}: {why}")


class _Reader:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._count = FieldCount()
        self._steps = 0

    def field(self, name: str, value: Any, path: str, *, required: bool, refs: tuple[str, ...]) -> Field:
        """Return the field that a subschema describes."""
        self._count.add()
        value, nullable, refs = self._resolve(value, path, refs)
        self._check_keywords(value, path)
        kinds = self._types(value, path)
        nullable = nullable or "null" in kinds or bool(value.get("nullable"))
        others = [kind for kind in kinds if kind != "null"]
        if len(others) != 1:
            _fail(path, f"a schema can't express a value of several types ({', '.join(others) or 'only null'})")
        limits = {key: value[key] for key in _LIMITS if key in value}
        allowed = value.get("enum", [value["const"]] if "const" in value else None)
        if allowed is not None:
            nullable = nullable or None in allowed
            limits[constraints.ENUM] = [each for each in allowed if each is not None]
        kind = self._type(others[0], value, path, refs)
        if isinstance(kind, Decimal):
            # The pattern in the definition of a decimal is that of its type.
            limits.pop(constraints.PATTERN, None)
        default = value.get("default")
        return Field(
            name, kind, nullable or (not required and default is None), default, value.get("description", ""), limits
        )

    def _resolve(self, value: Any, path: str, refs: tuple[str, ...]) -> tuple[dict[str, Any], bool, tuple[str, ...]]:
        """Follow references and unions with null. Return the subschema, and whether it is nullable."""
        nullable = False
        while True:
            self._steps += 1
            if self._steps > _STEPS_MAX:
                _fail(path, f"the definition takes more than {_STEPS_MAX:,} references and unions")
            if not isinstance(value, dict):
                _fail(path, "expected a schema, which is an object")
            if "$ref" in value:
                ref = value["$ref"]
                if ref in refs:
                    _fail(path, f"'{ref}' contains itself; a schema can't be recursive")
                refs = (*refs, ref)
                value = {**self._find(ref, path), **{key: each for key, each in value.items() if key != "$ref"}}
                continue
            union = next((key for key in ("anyOf", "oneOf", "allOf") if key in value), None)
            if union is None:
                return value, nullable, refs
            others = [each for each in value[union] if each != {"type": "null"}]
            if len(others) != 1:
                _fail(path, f"a schema can't express {union} of several types; only null and one other type")
            nullable = nullable or len(others) < len(value[union])
            value = {**{key: each for key, each in value.items() if key != union}, **others[0]}

    def _find(self, ref: str, path: str) -> dict[str, Any]:
        found = self._root
        if not ref.startswith("#"):
            _fail(path, f"'{ref}' is another document; put its content under $defs")
        for step in ref[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or step not in found:
                _fail(path, f"'{ref}' does not exist")
            found = found[step]
        if not isinstance(found, dict):
            _fail(path, f"'{ref}' is not a schema")
        return found

    def _check_keywords(self, value: dict[str, Any], path: str) -> None:
        for key in value:
            known = key in _IGNORED or key in _IGNORED_ALSO or key in _UNDERSTOOD or key in _LIMITS
            if not known and not key.startswith("x-"):
                _fail(path, f"a schema can't express '{key}'")

    def _types(self, value: dict[str, Any], path: str) -> list[str]:
        kinds = value.get("type")
        if kinds is None:
            allowed = value.get("enum", [value["const"]] if "const" in value else None)
            if allowed:
                return sorted({_type_of(each) for each in allowed})
            if "properties" in value:
                return ["object"]
            if "items" in value:
                return ["array"]
            _fail(path, "the schema has no type")
        return [kinds] if isinstance(kinds, str) else list(kinds)

    def _type(self, kind: str, value: dict[str, Any], path: str, refs: tuple[str, ...]) -> SchemaType:
        if TYPE_KEYWORD in value:
            return parse_type(value[TYPE_KEYWORD])
        if kind == "object":
            return self._object(value, path, refs)
        if kind == "array":
            if not isinstance(value.get("items"), dict):
                _fail(path, "an array needs `items` with one schema for all items")
            return ListType(self.field(ITEM, value["items"], f"{path}[]", required=True, refs=refs))
        if kind == "string" and value.get("contentEncoding") == "base64":
            return Scalar("binary")
        if kind not in _SCALARS:
            _fail(path, f"'{kind}' is not a type of JSON Schema")
        return Scalar(_FORMATS.get((kind, value.get("format", "")), _SCALARS[kind]))

    def _object(self, value: dict[str, Any], path: str, refs: tuple[str, ...]) -> SchemaType:
        properties, extra = value.get("properties", {}), value.get("additionalProperties", False)
        if not properties:
            if not isinstance(extra, dict):
                _fail(path, "an object needs `properties`, or `additionalProperties` with the schema of its values")
            return MapType(Scalar("string"), self.field(VALUE, extra, f"{path}{{}}", required=True, refs=refs))
        if extra is not False:
            _fail(path, "an object has either `properties` or `additionalProperties`: leave the latter out")
        required = set(value.get("required", ()))
        if missing := required - set(properties):
            _fail(path, f"'{sorted(missing)[0]}' is required, and not among the properties")
        return StructType(
            tuple(
                self.field(name, each, f"{path}.{name}" if path else name, required=name in required, refs=refs)
                for name, each in properties.items()
            )
        )


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "integer", float: "number", type(None): "null", dict: "object", list: "array"}
    return kinds[type(value)]
