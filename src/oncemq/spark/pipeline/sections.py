"""The sections of a pipeline's file: their keys, and the declarations that are made from them.

    name: order-totals
    source: {topic | topics | pattern, subscription, start, max_per_trigger, partitions, on_loss, columns, create}
    value: {format, schema, delimiter, malformed | on_error, dead_letter}
    watermark: {column, delay}
    sources: {NAME: {the keys of source, value, watermark}, …}    instead of source, value and watermark
    tables: {NAME: {parquet | csv, schema | delta | topic, value, columns}, …}
    transform: {sql | python}
    target: {topic, create, value, key} | {topics: by-row, create, value, key}
            | {parquet | delta, partition_by, evolve, storage} | {postgres, table, create, evolve} | {console, rows}
    output: append | update | complete
    trigger: available-now | {every}
    checkpoint: ./folder
    ack_last: true
    broker_timeout: 10m
    context: prod

Values that can't be read become problems of the document. checks/ finds out whether the values make sense together.
Relative folders are relative to the file, not to the working directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

from oncemq.config.endpoints import CREDENTIALS
from oncemq.spark.pipeline import ddl
from oncemq.spark.pipeline.model import (
    Encoding,
    Format,
    MessageColumn,
    Output,
    PartialInput,
    PartialPipeline,
    Source,
    Table,
    Transform,
    Trigger,
    Value,
    Watermark,
    partial_input,
)
from oncemq.spark.pipeline.node_reader import Duration, NodeReader, OffsetsByTopic, VariableNames, shown
from oncemq.spark.pipeline.problems import Path
from oncemq.spark.pipeline.schema_file import read_schema_file
from oncemq.spark.pipeline.yaml_tree import Document, Node
from oncemq.spark.targets import ConsoleTarget, DeltaTarget, ParquetTarget, PostgresTarget, Target, TopicTarget

Made = TypeVar("Made")

_KEYS = (
    "name",
    "source",
    "value",
    "watermark",
    "sources",
    "tables",
    "transform",
    "target",
    "output",
    "trigger",
    "checkpoint",
    "ack_last",
    "broker_timeout",
    "context",
)
_TEXTS = tuple[str, ...]
_TOPIC_KEYS = {"create": bool, "value": Literal["json", "text", "bytes", "typed"], "key": str}
_EVOLVE = {"evolve": Literal["add", "none"]}
_FOLDER_KEYS = {"partition_by": _TEXTS, **_EVOLVE, "storage": VariableNames}
#: The keys of each target and their types. The first key identifies the target.
_TARGETS: dict[str, dict[str, Any]] = {
    "topic": {"topic": str, **_TOPIC_KEYS},
    "topics": {"topics": Literal["by-row"], **_TOPIC_KEYS},
    "parquet": {"parquet": str, **_FOLDER_KEYS},
    "delta": {"delta": str, **_FOLDER_KEYS},
    "postgres": {"postgres": str, "table": str, "create": bool, **_EVOLVE},
    "console": {"console": bool, "rows": int},
}
#: Keys of `connect` that a file has not: it may be readable by others, and is copied to other machines.
_CREDENTIALS = {
    "url": "use `context`, or --url and ONCEMQ_URL where the pipeline runs",
    **dict.fromkeys(CREDENTIALS, "put it into a context, and write `context: NAME` here"),
    "token": "a secret does not belong into this file: use a context, --token-file, or ONCEMQ_TOKEN",
    "curve_secret": "a secret does not belong into this file: use a context, or ONCEMQ_CURVE_SECRET",
}
_AVAILABLE_NOW = "available-now"
#: Replaces a schema whose problem was reported, so that it is not reported twice.
_UNREADABLE_SCHEMA = "unreadable string"


def read_partial(document: Document, folder: str) -> PartialPipeline:
    """Read what the file declares, as far as it is readable. `folder` is the folder of the file."""
    root = document.root
    if root is None:
        return PartialPipeline()
    reader = NodeReader(document)
    reader.check_keys(root, _KEYS, (), advice=_CREDENTIALS)
    _check_presence(document)
    given = root.value
    name = reader.value(given.get("name"), str, ("name",))
    checkpoint = reader.value(given.get("checkpoint"), str, ("checkpoint",))
    target, encoding = _read_target(reader, given.get("target"), folder)
    return PartialPipeline(
        name=name,
        source=_read_source(reader, given.get("source"), ("source",)),
        value=_read_value(reader, given["value"], ("value",), folder) if "value" in given else Value(),
        watermark=_read_watermark(reader, given.get("watermark"), ("watermark",)),
        sources=_read_named(reader, given.get("sources"), ("sources",), partial(_read_input, folder=folder)),
        tables=_read_named(reader, given.get("tables"), ("tables",), partial(_read_table, folder=folder)),
        transform=_read_transform(reader, given.get("transform")),
        target=target,
        encoding=encoding,
        output=reader.value(given.get("output"), Output, ("output",)) or "append",
        trigger=_read_trigger(reader, given.get("trigger")),
        checkpoint=_resolve(checkpoint or f"checkpoints/{name}", folder),
        ack_last=bool(reader.value(given.get("ack_last"), bool, ("ack_last",))),
        broker_timeout=reader.value(given.get("broker_timeout"), Duration, ("broker_timeout",)) or "",
        context=reader.value(given.get("context"), str, ("context",)) or "",
    )


def _check_presence(document: Document) -> None:
    """Add a problem for each section that is missing, and for those that exclude each other."""
    assert document.root is not None
    given = document.root.value
    for key in ("name", "target"):
        if key not in given:
            document.add_problem((), f"{key!r} is missing", f"a pipeline needs a {key}")
    if "sources" not in given:
        if "source" not in given:
            document.add_problem((), "'source' is missing", "a pipeline needs a source, or `sources`")
        return
    for key in ("source", "value", "watermark"):
        if key in given:
            advice = "remove it, or `sources`" if key == "source" else "put it into each of the sources"
            document.add_problem((key,), f"a pipeline with 'sources' has no {key!r}", advice, is_key=True)


def _resolve(path: str, folder: str) -> str:
    """The absolute path of a folder. URLs (`s3://…`) are not changed."""
    return path if "://" in path else os.path.abspath(os.path.join(folder, os.path.expanduser(path)))


def _read_named(
    reader: NodeReader, node: Node | None, path: Path, read: Callable[[NodeReader, Node, Path], Made | None]
) -> dict[str, Made]:
    """A mapping from the names of views to what `read` makes of them."""
    if node is None or not reader.is_mapping(node, path):
        return {}
    if not node.value:
        reader.add_problem(path, f"{path[0]} is empty", "add a name, and its keys below it")
    made = {name: read(reader, inner, (*path, name)) for name, inner in node.value.items()}
    return {name: each for name, each in made.items() if each is not None}


def _read_input(reader: NodeReader, node: Node, path: Path, folder: str) -> PartialInput:
    is_mapping = node.kind == "map"
    value = node.value.get("value") if is_mapping else None
    return partial_input(
        str(path[-1]),
        source=_read_source(reader, node, path, also_known=("value", "watermark")),
        value=_read_value(reader, value, (*path, "value"), folder) if value is not None else Value(),
        watermark=_read_watermark(reader, node.value.get("watermark") if is_mapping else None, (*path, "watermark")),
    )


def _read_table(reader: NodeReader, node: Node, path: Path, folder: str) -> Table | None:
    types: dict[str, Any] = {"parquet": str, "csv": str, "delta": str, "topic": str, "schema": str}
    types["columns"] = tuple[MessageColumn, ...]
    found = reader.fields(node, types, path, also_known=("value",))
    if found is None:
        return None
    for key in ("parquet", "csv", "delta"):
        if found.get(key):
            found[key] = _resolve(found[key], folder)
    if "value" in node.value:
        found["value"] = _read_value(reader, node.value["value"], (*path, "value"), folder) or Value()
    return Table(**found)


def _read_source(
    reader: NodeReader, node: Node | None, path: Path, *, also_known: tuple[str, ...] = ()
) -> Source | None:
    start = node.value.get("start") if node is not None and node.kind == "map" else None
    types = {
        "topic": str,
        "topics": _TEXTS,
        "pattern": str,
        "subscription": str,
        "start": OffsetsByTopic if start is not None and start.kind == "map" else str,
        "max_per_trigger": int,
        "partitions": int,
        "on_loss": Literal["fail", "skip"],
        "columns": tuple[MessageColumn, ...],
        "create": bool,
    }
    found = reader.fields(node, types, path, also_known=also_known)
    return None if found is None else Source(**found)


def _read_value(reader: NodeReader, node: Node, path: Path, folder: str) -> Value | None:
    schema = node.value.get("schema") if node.kind == "map" else None
    is_mapping = schema is not None and schema.kind == "map"
    types = {
        "format": Format,
        "schema": None if is_mapping else str,
        "schema_file": str,
        "message": str,
        "version": int,
        "delimiter": str,
        "malformed": Literal["fail", "drop", "keep"],
        "on_error": Literal["fail", "dead_letter", "drop"],
        "dead_letter": str,
    }
    found = reader.fields(node, types, path, required=("format",))
    if found is None or "format" not in found:
        return None
    if is_mapping and schema is not None:
        found["schema"] = _read_schema(reader, schema, (*path, "schema"))
    read_schema_file(reader, found, path, folder)
    return Value(**found)


def _read_schema(reader: NodeReader, node: Node, path: Path) -> str:
    """Convert a mapping from columns to types to DDL."""
    types = {name: _read_type(reader, inner, (*path, name)) for name, inner in node.value.items()}
    if not types:
        reader.add_problem(path, "the schema has no columns", "write them as `name: type`")
    columns = [f"{ddl.quoted(name)} {kind}" for name, kind in types.items() if kind]
    return ", ".join(columns) or _UNREADABLE_SCHEMA


def _read_type(reader: NodeReader, node: Node, path: Path) -> str:
    """A type: its name, a mapping for a struct, or a list with one type for an array. "" if it is none of these."""
    if node.kind == "map":
        inner = {name: _read_type(reader, column, (*path, name)) for name, column in node.value.items()}
        return f"struct<{','.join(f'{ddl.quoted(name)}:{kind}' for name, kind in inner.items() if kind)}>"
    if node.kind == "seq" and len(node.value) == 1:
        inner_type = _read_type(reader, node.value[0], (*path, 0))
        return inner_type and f"array<{inner_type}>"
    if node.kind != "str":
        reader.refuse(node, path, "a type", "write one, such as bigint or string")
        return ""
    try:
        ddl.check_type(node.value)
    except ddl.DdlError as error:
        reader.add_problem(path, error.text, error.advice, offset=error.offset)
        return ""
    return str(node.value)


def _read_watermark(reader: NodeReader, node: Node | None, path: Path) -> Watermark | None:
    types = {"column": str, "delay": Duration}
    found = reader.fields(node, types, path, required=types)
    return Watermark(**found) if found and set(found) == set(types) else None


def _read_transform(reader: NodeReader, node: Node | None) -> Transform | None:
    found = reader.fields(node, {"sql": str, "python": str}, ("transform",))
    return None if found is None else Transform(**found)


def _read_trigger(reader: NodeReader, node: Node | None) -> Trigger:
    if node is not None and node.kind == "map":
        return Trigger(**(reader.fields(node, {"every": Duration}, ("trigger",), required=("every",)) or {}))
    if node is not None and node.value != _AVAILABLE_NOW:
        advice = f"write `trigger: {_AVAILABLE_NOW}` or `trigger: {{every: 5s}}`"
        reader.add_problem(("trigger",), f"{shown(node)} is not a trigger", advice)
    return Trigger()


def _read_target(reader: NodeReader, node: Node | None, folder: str) -> tuple[Target | None, Encoding]:
    if node is None or not reader.is_mapping(node, ("target",)):
        return None, Encoding()
    all_keys = {key for types in _TARGETS.values() for key in types}
    given = [kind for kind in _TARGETS if kind in node.value]
    if len(given) != 1:
        text = f"there are {len(given)} targets: {', '.join(given)}" if given else "the target is missing"
        advice = "keep one; for two targets, declare two pipelines" if given else f"choose one of {', '.join(_TARGETS)}"
        reader.add_problem(("target", given[1]) if given else ("target",), text, advice, is_key=True)
        reader.check_keys(node, all_keys, ("target",))
        return None, Encoding()
    kind = given[0]
    _refuse_keys_of_others(reader, node, kind)
    required = ("table",) if kind == "postgres" else ()
    found = reader.fields(node, _TARGETS[kind], ("target",), required=required, also_known=all_keys) or {}
    encoding = Encoding(value=found.pop("value", ""), key=found.pop("key", ""))
    return _make_target(reader, kind, found, folder), encoding


def _refuse_keys_of_others(reader: NodeReader, node: Node, kind: str) -> None:
    """Add a problem for each key that only other targets have."""
    for key in node.value:
        owners = [other for other, types in _TARGETS.items() if key in types]
        if owners and kind not in owners:
            advice = f"remove it; it belongs to {' and '.join(owners)}"
            reader.add_problem(("target", key), f"a {kind} target has no {key!r}", advice, is_key=True)


def _make_target(reader: NodeReader, kind: str, found: dict[str, Any], folder: str) -> Target | None:
    main = found.pop(kind, None)
    if main is None or (kind == "postgres" and "table" not in found):
        return None
    if kind in ("topic", "topics"):
        return TopicTarget(topic=main if kind == "topic" else "", **found)
    if kind in ("parquet", "delta"):
        target = ParquetTarget if kind == "parquet" else DeltaTarget
        return target(path=_resolve(main, folder) if main else "", **found)
    if kind == "postgres":
        return PostgresTarget(url=main, **found)
    if not main:
        reader.add_problem(("target", kind), "the console is off", "write `console: true`, or choose another target")
    return ConsoleTarget(**found)
