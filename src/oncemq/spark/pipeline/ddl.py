"""Parses schemas in Spark's DDL, without Spark.

    schema  := column ("," column)*
    column  := name [":"] type ["COMMENT" "'…'"]
    type    := "array" "<" type ">" | "map" "<" type "," type ">" | "struct" "<" [column ("," column)*] ">"
             | "decimal" ["(" precision ["," scale] ")"] | a plain type

Types that Spark knows but can't parse from a value (char, varchar, intervals) are refused, with a type to use instead.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from oncemq.spark.pipeline.problems import nearest

_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
_PLAIN = (
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
    "variant",
)
_NESTED = ("array", "map", "struct")
_KNOWN = (*_PLAIN, "decimal", *_NESTED, *_ALIASES)
_INSTEAD = {
    "char": "string",
    "varchar": "string",
    "text": "string",
    "str": "string",
    "uuid": "string",
    "interval": "string",
    "int64": "bigint",
    "int32": "int",
    "datetime": "timestamp",
    "bool": "boolean",
    "bytes": "binary",
    "number": "double",
    "object": "struct<…>",
    "json": "variant",
    "list": "array<…>",
}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.|'')*')|(\w+)|([<>(),:])|(\S))", re.ASCII)
_PRECISION_MAX = 38


class Column(NamedTuple):
    name: str
    #: The type without parameters: `decimal`, `array`.
    kind: str
    offset: int


class DdlError(Exception):
    """A schema that can't be parsed."""

    def __init__(self, text: str, advice: str, offset: int) -> None:
        super().__init__(text)
        self.text, self.advice, self.offset = text, advice, offset


class _Token(NamedTuple):
    kind: str
    text: str
    offset: int


def parse_columns(schema: str) -> list[Column]:
    """Parse the columns of a schema. Raises DdlError.

    >>> [column.kind for column in parse_columns("id BIGINT, tags ARRAY<STRING>, price DECIMAL(10, 2)")]
    ['bigint', 'array', 'decimal']
    """
    parser = _Parser(schema)
    found = parser.columns()
    parser.expect_end()
    return found


def check_type(text: str) -> str:
    """Parse a single type, and return it without parameters. Raises DdlError."""
    parser = _Parser(text)
    kind = parser.type()
    parser.expect_end()
    return kind


def quoted(name: str) -> str:
    """
    >>> quoted("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [
            _Token(
                ("name", "string", "word", "sign", "other")[(match.lastindex or 1) - 1],
                match[match.lastindex or 1],
                match.start(match.lastindex or 1),
            )
            for match in _TOKEN.finditer(text)
        ]
        self._end = _Token("end", "", len(text.rstrip()))
        self._at = 0

    def columns(self) -> list[Column]:
        found = [self._column()]
        while self._take(","):
            found.append(self._column())
        names: set[str] = set()
        for column in found:
            # Column names in Spark are not case-sensitive.
            if column.name.lower() in names:
                raise DdlError(f"there are two columns {column.name!r}", "rename one of them", column.offset)
            names.add(column.name.lower())
        return found

    def _column(self) -> Column:
        token = self._next()
        self._refuse_unexpected(token)
        if token.kind not in ("name", "word"):
            self._fail("the name of a column is missing", "write columns as `name type`, separated by commas", token)
        self._take(":")
        name = token.text[1:-1].replace("``", "`") if token.kind == "name" else token.text
        column = Column(name, self.type(name), token.offset)
        self._after_type()
        return column

    def _after_type(self) -> None:
        token = self._peek()
        word = token.text.lower()
        if word == "not":
            advice = "remove it, and filter rows with nulls out with SQL (WHERE … IS NOT NULL)"
            self._fail("NOT NULL is not checked when values are parsed", advice, token)
        if word == "comment":
            self._next()
            if self._next().kind != "string":
                self._fail("COMMENT has no text", "write it as COMMENT 'text'", token)

    def type(self, column: str = "") -> str:
        token = self._next()
        word = token.text.lower()
        self._refuse_unexpected(token)
        if token.kind != "word":
            of = f" of column {column!r}" if column else ""
            self._fail(f"the type{of} is missing", "write it after the name, as in `id bigint`", token)
        word = _ALIASES.get(word, word)
        if word not in _KNOWN:
            instead = _INSTEAD.get(word)
            advice = f"use {instead}" if instead else nearest(word, _KNOWN, f"types are {', '.join(_KNOWN[:17])}")
            self._fail(f"{token.text!r} is not a supported type", advice, token)
        if word == "decimal":
            self._decimal()
        elif word in _NESTED:
            self._nested(word, token)
        return word

    def _decimal(self) -> None:
        if not self._take("("):
            return
        precision = self._number()
        scale = self._number() if self._take(",") else 0
        close = self._expect(")", "write it as decimal(10,2)")
        if not 1 <= precision <= _PRECISION_MAX:
            text = f"the precision of a decimal is 1 to {_PRECISION_MAX} digits, not {precision}"
            self._fail(text, "choose another precision", close)
        if scale > precision:
            advice = f"write decimal({max(scale, precision)},{min(scale, precision)})"
            self._fail(f"a decimal with {precision} digits can't have {scale} after the point", advice, close)

    def _nested(self, word: str, token: _Token) -> None:
        form = {"array": "array<string>", "map": "map<string,bigint>", "struct": "struct<a:bigint,b:string>"}[word]
        if not self._take("<"):
            self._fail(f"{word} needs the types of its elements", f"write it as {form}", token)
        if word == "struct":
            if self._peek().text != ">":
                self.columns()
        else:
            self.type()
        if word == "map":
            self._expect(",", f"write it as {form}")
            self.type()
        self._expect(">", f"write it as {form}")

    def _refuse_unexpected(self, token: _Token) -> None:
        if token.kind == "other":
            advice = "put a name with characters other than letters, digits and _ into `backquotes`"
            self._fail(f"{token.text!r} is not expected here", advice, token)

    def expect_end(self) -> None:
        token = self._peek()
        if token.kind != "end":
            self._fail(f"{token.text!r} is not expected here", "put commas between columns", token)

    def _number(self) -> int:
        token = self._next()
        if not token.text.isdecimal():
            self._fail("the number of digits is missing", "write it as decimal(10,2)", token)
        return int(token.text)

    def _expect(self, sign: str, advice: str) -> _Token:
        token = self._next()
        if token.text != sign:
            self._fail(f"{sign!r} is missing", advice, token)
        return token

    def _take(self, sign: str) -> bool:
        found = self._peek().text == sign and self._peek().kind == "sign"
        self._at += found
        return found

    def _peek(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else self._end

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _fail(self, text: str, advice: str, token: _Token) -> NoReturn:
        raise DdlError(text, advice, token.offset)
