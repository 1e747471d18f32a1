"""JSON schemas of the types that endpoints declare, with descriptions from the declarations.

The description of a field is that of its Meta, or the comment `#:` above it or on its line, or that of the glossary.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import msgspec

from oncemq.gateways.http.docs.glossary import MEANINGS
from oncemq.gateways.http.framework.endpoint import Endpoint

REF = "#/components/schemas/{name}"

Json = dict[str, Any]


class Schemas:
    """The schemas of bodies and responses, as components, and the schemas of parameters."""

    def __init__(self, endpoints: Iterable[Endpoint], *others: Any) -> None:
        endpoints = list(endpoints)
        bodies = [*others, *(kind for endpoint in endpoints for kind in _kinds_of(endpoint) if is_typed(kind))]
        schemas, self.components = _described(bodies)
        self._by_type = list(zip(bodies, schemas, strict=True))
        self._parameters: dict[Any, Json] = {}
        for kind in dict.fromkeys(endpoint.parameters for endpoint in endpoints if endpoint.parameters is not None):
            (schema,), components = _described([kind])
            # The struct itself is no component: its fields become parameters.
            self._parameters[kind] = components.pop(schema["$ref"].rpartition("/")[2])
            self.components |= components

    def of(self, kind: Any) -> Json:
        """Return the schema of a type. It is empty for bytes and text, which are not JSON."""
        return next((schema for known, schema in self._by_type if known == kind), {})

    def of_parameters(self, endpoint: Endpoint) -> Json:
        """Return the schema of an object that has each parameter as a property."""
        return self._parameters.get(endpoint.parameters, {"properties": {}})


def is_typed(kind: Any) -> bool:
    """Return whether a body of this type is JSON with a schema."""
    return kind not in (None, bytes, str)


def _kinds_of(endpoint: Endpoint) -> Iterator[Any]:
    yield endpoint.body
    yield from endpoint.body_kinds.values()
    for reply in endpoint.replies:
        yield reply.body
    if endpoint.error_format is not None:
        yield endpoint.error_format.body


def _described(kinds: list[Any]) -> tuple[tuple[Json, ...], dict[str, Json]]:
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    for struct in {struct for kind in msgspec.inspect.multi_type_info(kinds) for struct in _structs(kind, set())}:
        fields = components[struct.__name__].get("properties", {})
        comments = comments_of(struct)
        for name, schema in fields.items():
            text = comments.get(name, MEANINGS.get(name))
            if text:
                schema.setdefault("description", text)
    return schemas, components


def _structs(kind: Any, seen: set[Any]) -> Iterator[Any]:
    """Yield the structs in a type, at any depth."""
    if isinstance(kind, msgspec.inspect.StructType):
        if kind.cls in seen:
            return
        seen.add(kind.cls)
        yield kind.cls
    if isinstance(kind, tuple):
        inner: Iterable[Any] = kind
    elif isinstance(kind, msgspec.inspect.Type | msgspec.inspect.Field):
        inner = msgspec.structs.asdict(kind).values()
    else:
        return
    for part in inner:
        yield from _structs(part, seen)


_COMMENT = re.compile(r"\s*#: ?(.*)")
_FIELD = re.compile(r"\s+(\w+): [^#]*(?:#: ?(.*))?")


def comments_of(struct: Any) -> dict[str, str]:
    """Return field → its comment `#:` in the source, including inherited fields."""
    found: dict[str, str] = {}
    for kind in reversed(struct.__mro__):
        if kind.__module__.startswith("oncemq."):
            found |= _comments_in(_source_of(kind))
    return found


def _source_of(kind: type) -> str:
    """Like `inspect.getsource`, but a hundred times as fast. It works for classes that are not indented."""
    block = rf"^class {kind.__name__}\b.*\n(?:(?:[ \t].*)?\n)*"
    found = re.search(block, _module_source(kind.__module__), re.MULTILINE)
    return found[0] if found else ""


@cache
def _module_source(name: str) -> str:
    return inspect.getsource(sys.modules[name])


def _comments_in(source: str) -> dict[str, str]:
    found: dict[str, str] = {}
    above: list[str] = []
    for line in source.splitlines():
        if comment := _COMMENT.fullmatch(line):
            above.append(comment[1])
        elif field := _FIELD.fullmatch(line):
            text = " ".join([*above, field[2] or ""]).strip()
            if text:
                found[field[1]] = text
            above = []
        else:
            above = []
    return found
