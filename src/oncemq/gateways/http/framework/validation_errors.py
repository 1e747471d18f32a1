"""What is wrong with a request, in words that help: msgspec's messages, with what would be right."""

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


def in_words(text: str, kind: Any) -> str:
    """msgspec's message about a `kind`, with the member's name in front.

    >>> in_words("Expected `bool`, got `str` - at `$.create`", dict)
    'create: true or false is wanted'
    """
    if text == "Input data was truncated":
        return "the JSON ends too early"
    what, _, place = text.partition(" - at `$")
    place = place.rstrip("`").removeprefix(".")
    if what.startswith("Object missing required field"):
        return f"{_inside(place, what)} is missing"
    if what.startswith("Object contains unknown field"):
        return f"{_inside(place, what)} is not known here"
    if what.startswith("Invalid enum value"):
        values = [repr(value) for value in _values_at(kind, place)]
        what = f"{what.removeprefix('Invalid enum value ')} is not possible" + (
            f"; {listed(values, 'or')} is" if values else ""
        )
    elif expected := _EXPECTED.match(what):
        has_fraction = what.endswith("got `float`")
        what = f"{_wanted(*expected.groups())} is wanted" + (", written without a point" if has_fraction else "")
    return f"{place}: {what}" if place else what


def _inside(place: str, what: str) -> str:
    name = what.partition("`")[2].rstrip("`")
    return f"`{place}.{name}`" if place else f"`{name}`"


def _wanted(kinds: str, length: str | None, bound: str | None, number: str | None) -> str:
    wanted = listed([_KINDS.get(kind, kind) for kind in kinds.split(" | ") if kind != "null"], "or")
    if bound is None:
        return wanted
    return f"{wanted} of length {_BOUNDS[bound]} {number}" if length else f"{wanted}, {_BOUNDS[bound]} {number},"


def _values_at(kind: Any, place: str) -> list[Any]:
    """What may stand there, where that is one of a few values."""
    found = [msgspec.inspect.type_info(kind)]
    for match in _PLACE.finditer(place):
        found = [inner for outer in found for inner in _members(outer, match[1])]
    plain = [each for outer in found for each in _plain(outer)]
    return [value for each in plain if isinstance(each, msgspec.inspect.LiteralType) for value in each.values]


def _members(outer: msgspec.inspect.Type, name: str | None) -> Iterator[msgspec.inspect.Type]:
    """The types of a member; of the items, where it has no name."""
    for each in _plain(outer):
        if isinstance(each, msgspec.inspect.StructType) and name is not None:
            yield from (field.type for field in each.fields if field.encode_name == name)
        elif isinstance(each, msgspec.inspect.CollectionType) and name is None:
            yield each.item_type


def _plain(outer: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    """Without what is said about it, and each of a union."""
    if isinstance(outer, msgspec.inspect.Metadata):
        return _plain(outer.type)
    if isinstance(outer, msgspec.inspect.UnionType):
        return [plain for each in outer.types for plain in _plain(each)]
    return [outer]
