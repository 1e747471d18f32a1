"""Limits on the values of a field, with the names and meanings of JSON Schema.

Writers check them. Compatibility and readers ignore them: a value that was accepted stays readable.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from oncemq.protocol.schema.model import Field, ListType, MapType, Schema, StructType, Type

#: The only allowed values.
ENUM: Final = "enum"
#: The number of a Protobuf field. It is not a limit, but part of the field's identity.
NUMBER: Final = "protobuf.number"

#: A regular expression for strings. Longer strings do not match: the time of a match may grow faster than the string.
PATTERN: Final = "pattern"
PATTERN_CHARACTERS_MAX: Final = 1_000
#: All patterns of a schema together: a set of many characters takes milliseconds to compile.
PATTERNS_CHARACTERS_MAX: Final = 5_000

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


_UNBOUNDED = re.compile(r"[*+]|\{\d*,\d*\}")
#: What repeats a group often: two or more digits, too.
_REPEATED = re.compile(r"[*+]|\{\d*,\d*\}|\{\d{2,}\}")
_FLAGS = re.compile(r"\(\?(?:#|[aiLmsux-]+[:)])")
_ESCAPED = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]", re.DOTALL)


def pattern_problem(pattern: str) -> str | None:
    """Return why a regular expression is not accepted: it is not valid, has flags or comments, which JSON Schema has
    not, or repeats a group that itself repeats or chooses, for which a match can take exponential time."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"the pattern is not a regular expression: {error}"
    # Escapes and sets can't repeat anything.
    plain = _ESCAPED.sub("x", pattern)
    if _FLAGS.search(plain):
        return "the pattern has flags or comments, which JSON Schema does not have: remove them"
    open_groups: list[bool] = []
    for at, character in enumerate(plain):
        if character == "(":
            open_groups.append(False)
        elif character == ")" and open_groups:
            varies = open_groups.pop()
            repeats = _REPEATED.match(plain, at + 1) is not None
            if varies and repeats:
                return "the pattern repeats a group that repeats or chooses: its match could take too long"
            if open_groups:
                open_groups[-1] = open_groups[-1] or varies or repeats
        elif open_groups and (character == "|" or _UNBOUNDED.match(plain, at)):
            open_groups[-1] = True
    return None


def without_patterns(schema: Schema) -> Schema:
    """Return a schema that accepts any string where a pattern limits them."""
    return msgspec.structs.replace(schema, fields=tuple(map(without_pattern, schema.fields)))


def without_pattern(field: Field) -> Field:
    """Return a field that accepts any string where a pattern limits them."""
    limits = {name: limit for name, limit in field.constraints.items() if name != PATTERN}
    return msgspec.structs.replace(field, type=_without_patterns(field.type), constraints=limits)


def _without_patterns(kind: Type) -> Type:
    if isinstance(kind, ListType):
        return ListType(without_pattern(kind.item))
    if isinstance(kind, MapType):
        return MapType(kind.key, without_pattern(kind.value))
    if isinstance(kind, StructType):
        return StructType(tuple(map(without_pattern, kind.fields)))
    return kind
