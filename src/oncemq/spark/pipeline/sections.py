"""The sections of a pipeline's file: which keys they have, and what becomes of them.

    name: order-totals
    source: {topic | topics | pattern, subscription, start, max_per_trigger, partitions, on_loss, columns}
    value: {format, schema, delimiter, malformed}
    watermark: {column, delay}
    transform: {sql | python}
    target: {topic, create, value, key} | {topics: by-row, create, value, key} | {parquet, partition_by}
            | {delta, partition_by} | {postgres, table, create} | {console, rows}
    trigger: available-now | {every}
    checkpoint: ./folder
    ack_last: true

Reads what can be read and notes what can't; whether the values make sense together is checked in checks.py.
Folders are beside the file, wherever the run is started.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from oncemq.spark.pipeline import ddl
from oncemq.spark.pipeline.mistakes import Path, nearest, path_text
from oncemq.spark.pipeline.model import Encoding, MessageColumn, Pipeline, Source, Transform, Trigger, Value, Watermark
from oncemq.spark.pipeline.yaml_tree import KINDS, Document, Node
from oncemq.spark.targets.declarations import (
    ConsoleTarget,
    DeltaTarget,
    ParquetTarget,
    PostgresTarget,
    Target,
    TopicTarget,
)

_KEYS = ("name", "source", "value", "watermark", "transform", "target", "trigger", "checkpoint", "ack_last")
_FORMATS = Literal["json", "csv", "text", "bytes"]
_TEXTS = tuple[str, ...]
_TOPIC_KEYS = {"create": bool, "value": Literal["json", "text", "bytes"], "key": str}
#: Each target by the key that says which it is, with the type of each key.
_TARGETS: dict[str, dict[str, Any]] = {
    "topic": {"topic": str, **_TOPIC_KEYS},
    "topics": {"topics": Literal["by-row"], **_TOPIC_KEYS},
    "parquet": {"parquet": str, "partition_by": _TEXTS},
    "delta": {"delta": str, "partition_by": _TEXTS},
    "postgres": {"postgres": str, "table": str, "create": bool},
    "console": {"console": bool, "rows": int},
}
_AVAILABLE_NOW = "available-now"
#: Stands where a mistake was noted already, so that it is not noted twice.
_UNREADABLE_SCHEMA = "unreadable string"


class Draft(msgspec.Struct, kw_only=True):
    """A pipeline of which parts may be missing."""

    name: str | None = None
    source: Source | None = None
    value: Value | None = Value()
    watermark: Watermark | None = None
    transform: Transform | None = None
    target: Target | None = None
    encoding: Encoding = Encoding()
    trigger: Trigger = Trigger()
    checkpoint: str = ""
    ack_last: bool = False

    def finished(self) -> Pipeline:
        return Pipeline(**msgspec.structs.asdict(self))


def draft_of(pipeline: Pipeline) -> Draft:
    return Draft(**msgspec.structs.asdict(pipeline))


def read_draft(document: Document, folder: str) -> Draft:
    """What the file declares, as far as it can be read. `folder` is the file's."""
    root = document.root
    if root is None:
        return Draft()
    reader = _Reader(document, folder)
    reader.check_keys(root, _KEYS, ())
    for key in ("name", "source", "target"):
        if key not in root.value:
            document.note((), f"{key!r} is missing", f"a pipeline has a {key}")
    given = root.value
    draft = Draft(
        name=reader.scalar(given.get("name"), str, ("name",)),
        source=reader.source(given.get("source")),
        value=reader.value(given["value"]) if "value" in given else Value(),
        watermark=reader.watermark(given.get("watermark")),
        transform=reader.transform(given.get("transform")),
        trigger=reader.trigger(given.get("trigger")),
        checkpoint=reader.scalar(given.get("checkpoint"), str, ("checkpoint",)) or "",
        ack_last=bool(reader.scalar(given.get("ack_last"), bool, ("ack_last",))),
    )
    draft.target, draft.encoding = reader.target(given.get("target"))
    draft.checkpoint = reader.beside(draft.checkpoint or f"checkpoints/{draft.name}")
    return draft


class _Reader:
    def __init__(self, document: Document, folder: str) -> None:
        self._document = document
        self._note = document.note
        self._folder = folder

    def source(self, node: Node | None) -> Source | None:
        start = node.value.get("start") if node is not None and node.kind == "map" else None
        by_topic = start is not None and start.kind == "map"
        types = {
            "topic": str,
            "topics": _TEXTS,
            "pattern": str,
            "subscription": str,
            "start": dict if by_topic else str,
            "max_per_trigger": int,
            "partitions": int,
            "on_loss": Literal["fail", "skip"],
            "columns": tuple[MessageColumn, ...],
        }
        found = self._fields(node, types, ("source",))
        return None if found is None else Source(**found)

    def value(self, node: Node) -> Value | None:
        schema = node.value.get("schema") if node.kind == "map" else None
        is_mapping = schema is not None and schema.kind == "map"
        types = {
            "format": _FORMATS,
            "schema": None if is_mapping else str,
            "delimiter": str,
            "malformed": Literal["fail", "drop", "keep"],
        }
        found = self._fields(node, types, ("value",), required=("format",))
        if found is None or "format" not in found:
            return None
        if is_mapping and schema is not None:
            found["schema"] = self._schema(schema, ("value", "schema"))
        return Value(**found)

    def _schema(self, node: Node, path: Path) -> str:
        """Columns by name, as DDL."""
        types = {name: self._type(inner, (*path, name)) for name, inner in node.value.items()}
        if not types:
            self._note(path, "the schema has no columns", "write them as `name: type`")
        columns = [f"{ddl.quoted(name)} {kind}" for name, kind in types.items() if kind]
        return ", ".join(columns) or _UNREADABLE_SCHEMA

    def _type(self, node: Node, path: Path) -> str:
        """A type: its name, a mapping for a struct, or a list of one type for an array of it. "" where it is none."""
        if node.kind == "map":
            inner = {name: self._type(column, (*path, name)) for name, column in node.value.items()}
            return f"struct<{','.join(f'{ddl.quoted(name)}:{kind}' for name, kind in inner.items() if kind)}>"
        if node.kind == "seq" and len(node.value) == 1:
            inner_type = self._type(node.value[0], (*path, 0))
            return inner_type and f"array<{inner_type}>"
        if node.kind != "str":
            self._wrong(node, path, "a type is needed", "write one, such as bigint or string")
            return ""
        try:
            ddl.check_type(node.value)
        except ddl.DdlError as error:
            self._note(path, error.text, error.advice, offset=error.offset)
            return ""
        return str(node.value)

    def watermark(self, node: Node | None) -> Watermark | None:
        keys = ("column", "delay")
        found = self._fields(node, dict.fromkeys(keys, str), ("watermark",), required=keys)
        return Watermark(**found) if found and set(found) == set(keys) else None

    def transform(self, node: Node | None) -> Transform | None:
        found = self._fields(node, {"sql": str, "python": str}, ("transform",))
        return None if found is None else Transform(**found)

    def trigger(self, node: Node | None) -> Trigger:
        if node is not None and node.kind == "map":
            every = node.value.get("every")
            if every is not None and every.kind in ("int", "float"):
                self._wrong(every, ("trigger", "every"), "a span of time is needed", f"write {every.value}s")
                return Trigger()
            found = self._fields(node, {"every": str}, ("trigger",), required=("every",)) or {}
            return Trigger(every=found.get("every", ""))
        if node is not None and node.value != _AVAILABLE_NOW:
            advice = f"write `trigger: {_AVAILABLE_NOW}` or `trigger: {{every: 5s}}`"
            self._note(("trigger",), f"{_shown(node)} is not a trigger", advice)
        return Trigger()

    def target(self, node: Node | None) -> tuple[Target | None, Encoding]:
        kinds = ", ".join(_TARGETS)
        if node is None or not self._is_mapping(node, ("target",)):
            return None, Encoding()
        given = [kind for kind in _TARGETS if kind in node.value]
        if len(given) != 1:
            text = f"there are {len(given)} targets: {', '.join(given)}" if given else "the target is missing"
            advice = "keep one; for two targets, declare two pipelines" if given else f"choose one of {kinds}"
            path: Path = ("target", given[1]) if given else ("target",)
            self._note(path, text, advice, is_key=True)
            self.check_keys(node, {key for types in _TARGETS.values() for key in types}, ("target",))
            return None, Encoding()
        types = _TARGETS[given[0]]
        self._refuse_elsewhere(node, given[0])
        required = ("table",) if given[0] == "postgres" else ()
        found = self._fields(node, types, ("target",), required=required) or {}
        encoding = Encoding(value=found.pop("value", ""), key=found.pop("key", ""))
        return self._made_target(given[0], found), encoding

    def _refuse_elsewhere(self, node: Node, kind: str) -> None:
        """Keys that other targets have."""
        for key in list(node.value):
            homes = [other for other, types in _TARGETS.items() if key in types]
            if homes and kind not in homes:
                advice = f"leave it out; it belongs to {' and '.join(homes)}"
                self._note(("target", key), f"a {kind} target has no {key!r}", advice, is_key=True)

    def _made_target(self, kind: str, found: dict[str, Any]) -> Target | None:
        main = found.pop(kind, None)
        if main is None or (kind == "postgres" and "table" not in found):
            return None
        if kind in ("topic", "topics"):
            return TopicTarget(topic=main if kind == "topic" else "", **found)
        if kind == "parquet":
            return ParquetTarget(path=self.beside(main) if main else "", **found)
        if kind == "delta":
            return DeltaTarget(path=self.beside(main) if main else "", **found)
        if kind == "postgres":
            return PostgresTarget(url=main, **found)
        if not main:
            advice = "write `console: true`, or choose another target"
            self._note(("target", kind), "the console is switched off", advice)
        return ConsoleTarget(**found)

    def beside(self, path: str) -> str:
        """A folder of the file system as it is found from everywhere; others (`s3://…`) as they are."""
        if "://" in path:
            return path
        return os.path.abspath(os.path.join(self._folder, os.path.expanduser(path)))

    def check_keys(self, node: Node, known: Iterable[str], path: Path) -> None:
        known = list(known)
        for key in node.value:
            if key not in known:
                where = path_text(path) or "a pipeline"
                advice = nearest(key, known, f"{where} has {', '.join(known)}")
                self._note((*path, key), f"{where} has no key {key!r}", advice, is_key=True)

    def _fields(
        self, node: Node | None, types: Mapping[str, Any], path: Path, required: Iterable[str] = ()
    ) -> dict[str, Any] | None:
        """The values that can be read, by key; keys of another kind of the same section were refused already."""
        if node is None or not self._is_mapping(node, path):
            return None
        if path == ("target",):
            self.check_keys(node, {*types, *(key for others in _TARGETS.values() for key in others)}, path)
        else:
            self.check_keys(node, types, path)
        for key in required:
            if key not in node.value:
                self._note(path, f"{path_text(path)} has no {key!r}", f"add `{key}: …`")
        found = {
            key: self.scalar(inner, types[key], (*path, key))
            for key, inner in node.value.items()
            if types.get(key) is not None
        }
        return {key: value for key, value in found.items() if value is not None}

    def _is_mapping(self, node: Node, path: Path) -> bool:
        if node.kind != "map":
            text = f"{path_text(path)} is {KINDS.get(node.kind, node.kind)}, and a mapping is needed"
            self._note(path, text, "write its keys below it, indented")
        return node.kind == "map"

    def scalar(self, node: Node | None, kind: Any, path: Path) -> Any:
        """A value of a type; None where it is of another, which is noted."""
        if node is None:
            return None
        if kind is dict:
            return {name: self._offset(inner, (*path, name)) for name, inner in node.value.items()}
        if get_origin(kind) is tuple:
            return self._texts(node, get_args(kind)[0], path)
        if get_origin(kind) is Literal:
            return self._choice(node, get_args(kind), path)
        return {str: self._text, int: self._number, bool: self._switch}[kind](node, path)

    def _text(self, node: Node, path: Path) -> str | None:
        # A time without quotes is a text to us.
        if node.kind in ("str", "timestamp"):
            return str(node.value)
        if node.kind in ("map", "seq", "null"):
            self._wrong(node, path, "text is needed", "write a text behind the colon")
        else:
            self._wrong(node, path, "text is needed", f'put it in quotes: "{node.value}"')
        return None

    def _number(self, node: Node, path: Path) -> int | None:
        text = str(node.value).replace("_", "")
        if (node.kind == "int" or node.is_substituted) and text.isdecimal() and text.isascii() and int(text) > 0:
            return int(text)
        self._wrong(node, path, "a whole number above 0 is needed", "write one, such as 1000, without quotes")
        return None

    def _offset(self, node: Node, path: Path) -> int | str:
        text = str(node.value)
        if node.kind == "int" and text.isdecimal():
            return int(text)
        if node.kind in ("str", "timestamp"):
            return text
        self._wrong(node, path, "an offset, earliest, latest or a time is needed", "write one of them")
        return "earliest"

    def _switch(self, node: Node, path: Path) -> bool | None:
        words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
        if (node.kind == "bool" or node.is_substituted) and str(node.value).lower() in words:
            return words[str(node.value).lower()]
        self._wrong(node, path, "true or false is needed", "write one of them, without quotes")
        return None

    def _choice(self, node: Node, words: tuple[str, ...], path: Path) -> str | None:
        if node.kind == "str" and node.value in words:
            return str(node.value)
        text = f"{path_text(path)} can't be {_shown(node)}"
        self._note(path, text, nearest(str(node.value), words, f"it is {' or '.join(words)}"))
        return None

    def _texts(self, node: Node, kind: Any, path: Path) -> tuple[str, ...] | None:
        if node.kind != "seq":
            self._wrong(node, path, "a list is needed", "write it as [one, two]")
            return None
        found = (self.scalar(inner, kind, (*path, at)) for at, inner in enumerate(node.value))
        return tuple(text for text in found if text is not None)

    def _wrong(self, node: Node, path: Path, needed: str, advice: str) -> None:
        is_text = node.kind == "str" and needed != "text is needed"
        what = _shown(node) if is_text or node.kind == "int" else KINDS.get(node.kind, node.kind)
        self._note(path, f"{path_text(path)} is {what}, and {needed}", advice)


def _shown(node: Node) -> str:
    return repr(node.value) if isinstance(node.value, str) and node.value else KINDS.get(node.kind, node.kind)
