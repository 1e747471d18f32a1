"""The fields form of a definition, as text: `id: int64 not null, price: decimal(10,2), tags: list<string>`.

    fields    field, field, …                      separated by commas or line breaks; `#` starts a comment
    field     NAME: TYPE [not null] [default JSON] [comment "TEXT"]
    NAME      letters, digits, `_`, `-` and `.`; any other name in double quotes
    TYPE      a scalar type · decimal(PRECISION, SCALE) · list<TYPE> · map<TYPE, TYPE> · struct<field, …>

A field is nullable unless it says `not null`, as in Arrow. Items of lists and values of maps can say it too:
`list<string not null>`. Arrow's own names of types are understood (`timestamp[us, tz=UTC]`, `double`, `utf8`).
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

from oncemq.protocol import errors
from oncemq.protocol.schema.model import (
    ITEM,
    PRECISION_MAX,
    SCALAR_KINDS,
    VALUE,
    Decimal,
    Field,
    ListType,
    MapType,
    Scalar,
    ScalarKind,
    StructType,
    Type,
)

#: Other names of scalar types, mostly those that Arrow prints.
ALIASES: Final[dict[str, ScalarKind]] = {
    "boolean": "bool",
    "float": "float32",
    "double": "float64",
    "utf8": "string",
    "large_string": "string",
    "string_view": "string",
    "large_binary": "binary",
    "binary_view": "binary",
    "bytes": "binary",
    "date32": "date",
    "date32[day]": "date",
    "time64[us]": "time",
    "timestamp[us, tz=utc]": "timestamp",
    "timestamp[us,tz=utc]": "timestamp",
    "timestamp[us]": "timestamp_ntz",
}
_SCALARS: Final[dict[str, ScalarKind]] = {kind: kind for kind in SCALAR_KINDS} | ALIASES

_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_WORD = re.compile(r"[\w.-]+(?:\[[^\]]*\])?", re.UNICODE)
_PLAIN_NAME = re.compile(r"[^\W\d][\w.-]*", re.UNICODE)
_NUMBER = re.compile(r"-?\d+")
_json = json.JSONDecoder()

#: Levels of nested types.
DEPTH_MAX = 32


def parse_fields(text: str) -> tuple[Field, ...]:
    """Return the fields of a definition in the fields form. Raises SchemaInvalid, which names the place."""
    parser = _Parser(text)
    fields = parser.fields("")
    if parser.at < len(text):
        parser.fail(f"unexpected '{text[parser.at]}'")
    return fields


def parse_type(text: str) -> Type:
    """Return a type that is written as in the fields form. Raises SchemaInvalid."""
    parser = _Parser(text)
    found = parser.type(0)
    parser.skip()
    if parser.at < len(text):
        parser.fail(f"unexpected '{text[parser.at]}' after the type")
    return found


def fields_text(fields: tuple[Field, ...], separator: str = ", ") -> str:
    """Return fields in the fields form, which has no constraints. `parse_fields` is the inverse."""
    return separator.join(f"{name_text(field.name)}: {_field_text(field)}" for field in fields)


def type_text(kind: Type) -> str:
    """Return a type as it is written in the fields form."""
    if isinstance(kind, Scalar):
        return kind.kind
    if isinstance(kind, Decimal):
        return f"decimal({kind.precision},{kind.scale})"
    if isinstance(kind, ListType):
        return f"list<{_field_text(kind.item)}>"
    if isinstance(kind, MapType):
        return f"map<{kind.key.kind}, {_field_text(kind.value)}>"
    return f"struct<{fields_text(kind.fields)}>"


def name_text(name: str) -> str:
    """Return a name as it is written in the fields form: in double quotes if it needs them."""
    return name if _PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _field_text(field: Field) -> str:
    text = type_text(field.type)
    if not field.nullable:
        text += " not null"
    if field.default is not None:
        text += f" default {json.dumps(field.default, ensure_ascii=False)}"
    if field.doc:
        text += f" comment {json.dumps(field.doc, ensure_ascii=False)}"
    return text


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, why: str) -> NoReturn:
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - (self.text.rfind("\n", 0, self.at) + 1) + 1
        raise errors.SchemaInvalid(f"line {line}, column {column} of the fields: {why}")

    def skip(self) -> None:
        found = _BLANK.match(self.text, self.at)
        assert found is not None  # It matches the empty string.
        self.at = found.end()

    def accept(self, token: str) -> bool:
        self.skip()
        if not self.text.startswith(token, self.at):
            return False
        self.at += len(token)
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.fail(f"expected '{token}'")

    def word(self, what: str) -> str:
        self.skip()
        found = _WORD.match(self.text, self.at)
        if found is None:
            self.fail(f"expected {what}")
        self.at = found.end()
        return found.group()

    def keyword(self, *words: str) -> bool:
        """Accept these words, in any case, and nothing if another word follows."""
        start = self.at
        for word in words:
            self.skip()
            found = _WORD.match(self.text, self.at)
            if found is None or found.group().lower() != word:
                self.at = start
                return False
            self.at = found.end()
        return True

    def json(self) -> Any:
        self.skip()
        try:
            value, self.at = _json.raw_decode(self.text, self.at)
        except ValueError:
            self.fail("expected a JSON value")
        return value

    def name(self) -> str:
        self.skip()
        if self.text.startswith('"', self.at):
            return str(self.json())
        return self.word("the name of a field")

    def fields(self, closing: str, depth: int = 0) -> tuple[Field, ...]:
        found: list[Field] = []
        while True:
            while self.accept(","):
                pass
            self.skip()
            if self.at == len(self.text) or (closing and self.text.startswith(closing, self.at)):
                return tuple(found)
            name = self.name()
            self.expect(":")
            found.append(self.field(name, depth))

    def field(self, name: str, depth: int) -> Field:
        kind = self.type(depth)
        nullable, default, doc = True, None, ""
        while True:
            if self.keyword("not", "null"):
                nullable = False
            elif self.keyword("default"):
                default = self.json()
            elif self.keyword("comment"):
                doc = str(self.json())
            else:
                return Field(name, kind, nullable, default, doc)

    def named(self, name: str, depth: int) -> Field:
        """The item of a list or the value of a map. Arrow writes its name too, which has no meaning."""
        start = self.at
        self.skip()
        if _WORD.match(self.text, self.at):
            self.word("a type")
            if not self.accept(":"):
                self.at = start
        return self.field(name, depth)

    def type(self, depth: int) -> Type:
        if depth > DEPTH_MAX:
            self.fail(f"types are nested more than {DEPTH_MAX} levels deep")
        self.skip()
        start = self.at
        word = self.word("a type").lower()
        if word in _SCALARS:
            return Scalar(_SCALARS[word])
        if word in ("decimal", "decimal128"):
            return self.decimal()
        if word in ("list", "large_list"):
            self.expect("<")
            item = self.named(ITEM, depth + 1)
            self.expect(">")
            return ListType(item)
        if word == "map":
            return self.map(depth)
        if word == "struct":
            self.expect("<")
            fields = self.fields(">", depth + 1)
            self.expect(">")
            return StructType(fields)
        self.at = start
        return self.fail(
            f"'{word}' is not a type; the types are {', '.join(SCALAR_KINDS)}, decimal, list, map and struct"
        )

    def decimal(self) -> Decimal:
        self.expect("(")
        precision = self.number()
        scale = self.number() if self.accept(",") else 0
        self.expect(")")
        if not (1 <= precision <= PRECISION_MAX and 0 <= scale <= precision):
            self.fail(f"a decimal has 1 to {PRECISION_MAX} digits, and a scale from 0 to that number")
        return Decimal(precision, scale)

    def number(self) -> int:
        self.skip()
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            self.fail("expected a number")
        self.at = found.end()
        return int(found.group())

    def map(self, depth: int) -> MapType:
        self.expect("<")
        key = self.type(depth + 1)
        if not isinstance(key, Scalar):
            self.fail("the key of a map must be a string or an integer")
        self.keyword("not", "null")
        self.expect(",")
        value = self.named(VALUE, depth + 1)
        self.expect(">")
        return MapType(key, value)
