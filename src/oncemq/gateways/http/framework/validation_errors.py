"""Explains what is wrong with a request: msgspec's messages, and what would be valid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

_KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "object": "an object",
    "array": "a list",
    "bytes": "text in base64",
    "datetime": "a time with its zone (RFC 3339)",
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_EXPECTED = re.compile(r"Expected `([\w |]+)`(?: (of length )?(>=|<=|>|<) (\d+))?")
_PLACE = re.compile(r"\.?([^.\[\]]+)|\[[^\]]*\]")


def listed(names: Sequence[str], word: str = "and") -> str:
    """
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return f" {word} ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def explain(text: str, kind: Any) -> str:
    """Return msgspec's message about a `kind` in plain words, with the field's name in front.

    >>> explain("Expected `bool`, got `str` - at `$.create`", dict)
    'create: it must be true or false'
    """
    if text == "Input data was truncated":
        return "the JSON ends too early"
    what, _, place = text.partition(" - at `$")
    place = place.rstrip("`").removeprefix(".")
    if what.startswith("Object missing required field"):
        return f"{_inside(place, what)} is missing"
    if what.startswith("Object contains unknown field"):
        return f"{_inside(place, what)} is not a known field"
    if what.startswith("Invalid enum value"):
        values = [repr(value) for value in _values_at(kind, place)]
        what = f"{what.removeprefix('Invalid enum value ')} is not allowed" + (
            f"; it must be {listed(values, 'or')}" if values else ""
        )
    elif expected := _EXPECTED.match(what):
        has_fraction = what.endswith("got `float`")
        what = f"it must be {_expected(*expected.groups())}" + (", without a decimal point" if has_fraction else "")
    return f"{place}: {what}" if place else what


def _inside(place: str, what: str) -> str:
    name = what.partition("`")[2].rstrip("`")
    return f"`{place}.{name}`" if place else f"`{name}`"


def _expected(kinds: str, length: str | None, bound: str | None, number: str | None) -> str:
    expected = listed([_KINDS.get(kind, kind) for kind in kinds.split(" | ") if kind != "null"], "or")
    if bound is None:
        return expected
    return f"{expected} of length {_BOUNDS[bound]} {number}" if length else f"{expected}, {_BOUNDS[bound]} {number}"


def _values_at(kind: Any, place: str) -> list[Any]:
    """Return the allowed values at a place, if there are only a few."""
    found = [msgspec.inspect.type_info(kind)]
    for match in _PLACE.finditer(place):
        found = [inner for outer in found for inner in _members(outer, match[1])]
    plain = [each for outer in found for each in _plain(outer)]
    return [value for each in plain if isinstance(each, msgspec.inspect.LiteralType) for value in each.values]


def _members(outer: msgspec.inspect.Type, name: str | None) -> Iterator[msgspec.inspect.Type]:
    """Yield the types of a field, or (no name) of a list's items."""
    for each in _plain(outer):
        if isinstance(each, msgspec.inspect.StructType) and name is not None:
            yield from (field.type for field in each.fields if field.encode_name == name)
        elif isinstance(each, msgspec.inspect.CollectionType) and name is None:
            yield each.item_type


def _plain(outer: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    """Return a type without its metadata; for a union, each of its types."""
    if isinstance(outer, msgspec.inspect.Metadata):
        return _plain(outer.type)
    if isinstance(outer, msgspec.inspect.UnionType):
        return [plain for each in outer.types for plain in _plain(each)]
    return [outer]
