"""Digests of operations: they show whether a retry under the same number or key is the same operation."""

from __future__ import annotations

import msgspec
import xxhash

from oncemq.protocol import commands

_encode = msgspec.msgpack.Encoder().encode

#: Operations that have got more fields since journal version 1, and their number of elements in that version.
_ELEMENTS_IN_VERSION_1: dict[type, int] = {
    commands.CreateTopic: 4,
    commands.Subscribe: 4,
    commands.Open: 4,
    commands.Commit: 5,
}


def digest_of(operation: commands.Operation) -> int:
    """Return the digest of an operation. It covers the payload through its checksum.

    Later fields count only if they differ from their defaults: operations that were decided before an upgrade are
    recognised after it.
    """
    if type(operation) in _ELEMENTS_IN_VERSION_1:
        return xxhash.xxh3_64_intdigest(_encode(_elements(operation)))
    return xxhash.xxh3_64_intdigest(_encode(operation))


def _elements(operation: commands.Operation) -> list[object]:
    """Return the elements of an operation without later fields that have their defaults."""
    kind = type(operation)
    elements: list[object] = [kind.__struct_config__.tag, *msgspec.structs.astuple(operation)]
    defaults = list(kind.__struct_defaults__)
    while len(elements) > _ELEMENTS_IN_VERSION_1[kind] and elements[-1] == defaults.pop():
        elements.pop()
    return elements
