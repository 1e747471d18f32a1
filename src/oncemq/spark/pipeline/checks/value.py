"""Checks of the sections `value` and `watermark`, of the pipeline or of each of its sources."""

from __future__ import annotations

from collections.abc import Iterator

from oncemq.spark.pipeline import ddl
from oncemq.spark.pipeline.checks.definition import DEFINED, check_definition, defined_columns
from oncemq.spark.pipeline.checks.errors import check_on_error
from oncemq.spark.pipeline.checks.trigger import check_duration
from oncemq.spark.pipeline.model import (
    MALFORMED_COLUMN,
    MESSAGE_PREFIX,
    PartialInput,
    PartialPipeline,
    Value,
    Watermark,
)
from oncemq.spark.pipeline.problems import Path, Problem, nearest, problem
from oncemq.spark.pipeline.schema_file import UNREADABLE

_TIMES = ("timestamp", "timestamp_ntz")
_NESTED = ("array", "map", "struct")


def check_values(partial: PartialPipeline) -> Iterator[Problem]:
    for each in partial.inputs.values():
        if each.value is not None:
            yield from check_value(each.value, each.source.columns if each.source else (), each.value_path)
            yield from check_on_error(partial, each.value, each.value_path)


def check_value(value: Value, columns: tuple[str, ...], path: Path) -> Iterator[Problem]:
    """Check a section `value`. `columns` are those of the message that are added to it."""
    yield from _check_typed(value, path)
    has_schema = value.format in ("json", "csv")
    if has_schema and not value.schema.strip():
        advice = "add `schema: id bigint, name string`, or columns below `schema:`"
        yield Problem(path=path, text=f"{value.format} needs a schema", advice=advice, is_missing=True)
    if value.format in ("text", "bytes") and value.schema:
        yield problem((*path, "schema"), f"{value.format} has no schema", "remove it, or choose json or csv")
    if value.format != "csv" and value.delimiter != ",":
        yield problem((*path, "delimiter"), f"{value.format} has no delimiter", "remove it; it is for csv")
    elif len(value.delimiter) != 1 or value.delimiter in '"\r\n':
        advice = 'write one character, such as ";" or "\\t"'
        yield problem((*path, "delimiter"), f"{value.delimiter!r} can't separate columns", advice)
    if value.format == "bytes" and value.policy != "fail":
        yield problem((*path, "on_error" if value.on_error else "malformed"), "bytes are never malformed", "remove it")
    if has_schema and value.schema.strip():
        yield from _check_schema(value, columns, path)
    elif value.format in DEFINED and value.schema.strip():
        yield from check_definition(value, columns, path)


def _check_typed(value: Value, path: Path) -> Iterator[Problem]:
    if value.format in DEFINED and not value.schema.strip():
        advice = "add `schema_file: NAME`, or the definition as text below `schema: |`"
        yield Problem(path=path, text=f"{value.format} needs a schema", advice=advice, is_missing=True)
    if value.format == "typed" and value.schema:
        yield problem((*path, "schema"), "the topic has the schema of typed values", "remove it")
    if value.format != "protobuf" and value.message:
        yield problem((*path, "message"), f"{value.format} has no messages", "remove it; it is for protobuf")
    if value.format != "typed" and value.version:
        yield problem((*path, "version"), f"{value.format} has no versions", "remove it; it is for typed")


def _check_schema(value: Value, message_columns: tuple[str, ...], path: Path) -> Iterator[Problem]:
    if value.schema == UNREADABLE:
        return
    path = (*path, "schema")
    try:
        columns = ddl.parse_columns(value.schema)
    except ddl.DdlError as error:
        yield problem(path, error.text, error.advice, error.offset)
        return
    taken = {MESSAGE_PREFIX + name: "source.columns" for name in message_columns}
    if value.policy == "keep":
        taken[MALFORMED_COLUMN] = "malformed: keep"
    for column in columns:
        if value.format == "csv" and column.kind in _NESTED:
            text = f"csv has no {column.kind}, but column {column.name!r} is one"
            yield _column_problem(path, column, text, "read it as string, and parse it with SQL")
        if column.name.lower() in taken:
            text = f"column {column.name!r} has the same name as the column that `{taken[column.name.lower()]}` adds"
            yield _column_problem(path, column, text, "remove that, or read the value as text and parse it with SQL")


def _column_problem(path: Path, column: ddl.Column, text: str, advice: str) -> Problem:
    """If the schema is one text, the offset locates the column; if it is a mapping, the key does."""
    return Problem(path=(*path, column.name), text=text, advice=advice, offset=column.offset, is_key=True)


def check_watermarks(partial: PartialPipeline) -> Iterator[Problem]:
    for each in partial.inputs.values():
        if each.watermark is not None:
            yield from _check_watermark(each, each.watermark)


def _check_watermark(each: PartialInput, watermark: Watermark) -> Iterator[Problem]:
    path = each.watermark_path
    yield from check_duration(watermark.delay, (*path, "delay"))
    columns = _input_columns(each)
    if columns is None:
        return
    kind = columns.get(watermark.column)
    if kind is None:
        known = [name for name, kind in columns.items() if kind in _TIMES]
        otherwise = f"the columns are {', '.join(columns)}; `columns: [timestamp]` of the source adds message_timestamp"
        advice = nearest(watermark.column, known, otherwise)
        yield problem((*path, "column"), f"there is no column {watermark.column!r}", advice)
    elif kind not in _TIMES:
        yield problem((*path, "column"), f"column {watermark.column!r} is a {kind}", "read it as timestamp")


def _input_columns(each: PartialInput) -> dict[str, str] | None:
    """The columns of a view with their types; None if they are not known."""
    value, source = each.value, each.source
    if value is None or source is None:
        return None
    if value.format in ("text", "bytes"):
        found = {"value": "string"}
    elif value.has_source_columns:
        defined = defined_columns(value)
        if defined is None:
            return None
        found = defined
    else:
        try:
            found = {column.name: column.kind for column in ddl.parse_columns(value.schema)}
        except ddl.DdlError:
            return None
    types = {"timestamp": "timestamp"}
    return found | {MESSAGE_PREFIX + name: types.get(name, "string") for name in source.columns}
