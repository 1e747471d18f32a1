"""Compatibility between versions of a schema: pure functions that return readable problems.

    backward   readers with the new version can read values of all earlier versions
    forward    readers with any earlier version can read values of the new version
    full       both
    none       anything is accepted

Fields are compared by name, because a value is always decoded with the version that it was written with. A reader
fills in what the value lacks with null or a default, and ignores fields that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, get_args

from oncemq.protocol.schema.constraints import NUMBER
from oncemq.protocol.schema.fields_text import type_text
from oncemq.protocol.schema.model import (
    Decimal,
    Field,
    ListType,
    MapType,
    Scalar,
    ScalarKind,
    Schema,
    SchemaVersion,
    StructType,
    Type,
)

Rule = Literal["none", "backward", "forward", "full"]
RULES: Final[tuple[Rule, ...]] = get_args(Rule)

_SIGNED: tuple[ScalarKind, ...] = ("int8", "int16", "int32", "int64")
_UNSIGNED: tuple[ScalarKind, ...] = ("uint8", "uint16", "uint32", "uint64")


def _wider() -> dict[ScalarKind, frozenset[ScalarKind]]:
    """Return, for each type, the types that hold all of its values exactly."""
    found: dict[ScalarKind, set[ScalarKind]] = {"float32": {"float64"}}
    for level, (signed, unsigned) in enumerate(zip(_SIGNED, _UNSIGNED, strict=True)):
        found[signed] = set(_SIGNED[level + 1 :])
        found[unsigned] = {*_UNSIGNED[level + 1 :], *_SIGNED[level + 1 :]}
        if level < 2:
            found[signed] |= {"float32", "float64"}
            found[unsigned] |= {"float32", "float64"}
        elif level == 2:
            found[signed].add("float64")
            found[unsigned].add("float64")
    return {kind: frozenset(wider) for kind, wider in found.items()}


_WIDER: Final = _wider()


def compatibility(old: Schema, new: Schema, rule: Rule) -> list[str]:
    """Return what breaks if `new` follows `old` under this rule. Each problem names the path of the field."""
    if rule == "none":
        return []
    if old.encoding != new.encoding:
        return [f"the values would be {new.encoding}, and are {old.encoding}: an encoding can't change"]
    problems: list[str] = _renumbered(old.fields, new.fields, "")
    if rule in ("backward", "full"):
        problems += unreadable(old.fields, new.fields, "new readers can't read old values")
    if rule in ("forward", "full"):
        problems += unreadable(new.fields, old.fields, "old readers can't read new values")
    return problems


def incompatibilities(versions: Iterable[SchemaVersion], new: Schema, rule: Rule) -> list[str]:
    """Return what breaks if `new` follows all of these versions. A problem with several versions is named once."""
    found: dict[str, list[int]] = {}
    for each in versions:
        for problem in compatibility(each.schema, new, rule):
            found.setdefault(problem, []).append(each.version)
    return [f"{problem} (version {', '.join(map(str, known))})" for problem, known in found.items()]


def unreadable(written: tuple[Field, ...], read: tuple[Field, ...], consequence: str, path: str = "") -> list[str]:
    """Return why readers with the fields `read` can't read values with the fields `written`."""
    known = {field.name: field for field in written}
    problems = []
    for field in read:
        where = f"{path}.{field.name}" if path else field.name
        other = known.get(field.name)
        if other is not None:
            problems += _unreadable_field(other, field, consequence, where)
        elif field.is_required:
            problems.append(f"{where}: it is not nullable, has no default, and the values lack it: {consequence}")
    return problems


def _unreadable_field(written: Field, read: Field, consequence: str, path: str) -> list[str]:
    problems = []
    if written.nullable and read.is_required:
        problems.append(f"{path}: values may be null, and a reader expects no null: {consequence}")
    return problems + _unreadable_type(written.type, read.type, consequence, path)


def _unreadable_type(written: Type, read: Type, consequence: str, path: str) -> list[str]:
    if isinstance(written, StructType) and isinstance(read, StructType):
        return unreadable(written.fields, read.fields, consequence, path)
    if isinstance(written, ListType) and isinstance(read, ListType):
        return _unreadable_field(written.item, read.item, consequence, f"{path}[]")
    if isinstance(written, MapType) and isinstance(read, MapType) and written.key == read.key:
        return _unreadable_field(written.value, read.value, consequence, f"{path}{{}}")
    if holds(read, written):
        return []
    return [f"{path}: a reader expects {type_text(read)}, and values are {type_text(written)}: {consequence}"]


def holds(wide: Type, narrow: Type) -> bool:
    """Whether a scalar or decimal type holds all values of another exactly."""
    if isinstance(wide, Scalar) and isinstance(narrow, Scalar):
        return wide == narrow or wide.kind in _WIDER.get(narrow.kind, ())
    if isinstance(wide, Decimal) and isinstance(narrow, Decimal):
        return wide.scale >= narrow.scale and wide.precision - wide.scale >= narrow.precision - narrow.scale
    return False


def _renumbered(old: tuple[Field, ...], new: tuple[Field, ...], path: str) -> list[str]:
    """Protobuf: programs with generated classes find fields by their numbers, so a field keeps its number."""
    numbers = {field.name: field for field in old}
    names = {field.constraints[NUMBER]: field.name for field in old if NUMBER in field.constraints}
    problems = []
    for field in new:
        where = f"{path}.{field.name}" if path else field.name
        before, number = numbers.get(field.name), field.constraints.get(NUMBER)
        if number is None:
            continue
        if before is not None and before.constraints.get(NUMBER, number) != number:
            problems.append(f"{where}: its Protobuf number was {before.constraints[NUMBER]} and would be {number}")
        elif before is None and number in names:
            problems.append(f"{where}: its Protobuf number {number} was that of '{names[number]}'")
        if before is not None and isinstance(before.type, StructType) and isinstance(field.type, StructType):
            problems += _renumbered(before.type.fields, field.type.fields, where)
    return problems
