"""Whether a pipeline makes sense: each part by itself, then the parts together. Needs neither Spark nor a broker.

A check looks at a draft and yields mistakes; what could not be read is None, and was noted where it was read.
Python's pipelines are checked by the same checks as those of files.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from oncemq.config.durations import duration_s
from oncemq.protocol.names import refuse_name, refuse_topic_name
from oncemq.protocol.patterns import matches, refuse_pattern
from oncemq.spark.pipeline import ddl
from oncemq.spark.pipeline.functions import FunctionError, load_function
from oncemq.spark.pipeline.mistakes import Mistake, Path, nearest
from oncemq.spark.pipeline.model import MALFORMED_COLUMN, MESSAGE_PREFIX, VIEW, Source, Value
from oncemq.spark.pipeline.sections import Draft
from oncemq.spark.targets.declarations import ConsoleTarget, DeltaTarget, ParquetTarget, PostgresTarget, TopicTarget

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ -]{0,99}")
_QUERY = re.compile(r"(select|with|from|values|table|\()", re.IGNORECASE)
#: What is no name in SQL: comments and texts.
_NO_SQL = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_TIMES = ("timestamp", "timestamp_ntz")
_NESTED = ("array", "map", "struct")


def check(draft: Draft, folder: str) -> Iterator[Mistake]:
    """Everything that is wrong; modules of Python are looked for in `folder` too."""
    for part in _PARTS:
        yield from part(draft)
    yield from _check_transform(draft, folder)


def _wrong(path: Path, text: str, advice: str, offset: int | None = None) -> Mistake:
    return Mistake(path=path, text=text, advice=advice, offset=offset)


def _check_name(draft: Draft) -> Iterator[Mistake]:
    if draft.name is not None and not _NAME.fullmatch(draft.name):
        advice = "use up to 100 letters, digits, spaces and . _ -, and begin with a letter, digit or _"
        yield _wrong(("name",), f"{draft.name!r} can't be a pipeline's name: it names its folder too", advice)


def _check_topics(draft: Draft) -> Iterator[Mistake]:
    source = draft.source
    if source is None:
        return
    given = [key for key in ("topic", "topics", "pattern") if getattr(source, key)]
    if len(given) != 1:
        text = f"the source has {' and '.join(given)}" if given else "the source names no topic"
        advice = "give it exactly one of topic, topics and pattern"
        yield Mistake(path=("source",), text=text, advice=advice, is_missing=not given)
    yield from _check_names(source)
    if source.subscription:
        refusal = refuse_name(source.subscription, "subscriber's name")
        if refusal is not None:
            yield _wrong(("source", "subscription"), refusal.text, "choose another name")


def _check_names(source: Source) -> Iterator[Mistake]:
    places: list[tuple[Path, str]] = [(("source", "topic"), source.topic)] if source.topic else []
    places += [(("source", "topics", at), name) for at, name in enumerate(source.topics)]
    for path, name in places:
        refusal = refuse_topic_name(name)
        if refusal is not None:
            advice = "write `pattern: …` for several topics" if "*" in name or "#" in name else "choose another name"
            yield _wrong(path, refusal.text, advice)
    for at, name in enumerate(source.topics):
        if name in source.topics[:at]:
            yield _wrong(("source", "topics", at), f"the topic {name!r} is there twice", "name it once")
    refusal = refuse_pattern(source.pattern) if source.pattern else None
    if refusal is not None:
        yield _wrong(("source", "pattern"), refusal.text, "use * for one level and # for any number: orders.*, #.eu")


def _check_start(draft: Draft) -> Iterator[Mistake]:
    source = draft.source
    if source is None:
        return
    if source.pattern and source.start not in ("earliest", "latest"):
        text = "with a pattern, a pipeline starts at `earliest` or `latest`"
        yield _wrong(("source", "start"), text, "write one of them, or name the topics with `topics: […]`")
    elif isinstance(source.start, str):
        yield from _check_place(source.start, ("source", "start"), "earliest, latest, a time or a mapping by topic")
    else:
        yield from _check_starts(source, source.start)


def _check_starts(source: Source, starts: Mapping[str, int | str]) -> Iterator[Mistake]:
    for topic, place in starts.items():
        path = ("source", "start", topic)
        if topic not in source.names:
            advice = nearest(topic, source.names, "name topics of this source only")
            yield Mistake(path=path, text=f"the source has no topic {topic!r}", advice=advice, is_key=True)
        if isinstance(place, str):
            yield from _check_place(place, path, "an offset, earliest, latest or a time")


def _check_place(text: str, path: Path, allowed: str) -> Iterator[Mistake]:
    if text in ("earliest", "latest"):
        return
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        yield _wrong(path, f"{text!r} is no place to start at", f"write {allowed}, such as 2026-01-31T12:00:00Z")
        return
    if moment.tzinfo is None:
        yield _wrong(path, f"the time {text} has no zone", f"add one: {text}Z" if "T" in text else "add time and zone")


def _check_value(draft: Draft) -> Iterator[Mistake]:
    value = draft.value
    if value is None:
        return
    has_schema = value.format in ("json", "csv")
    if has_schema and not value.schema.strip():
        advice = "add `schema: id bigint, name string`, or columns below `schema:`"
        yield Mistake(path=("value",), text=f"{value.format} needs a schema", advice=advice, is_missing=True)
    if not has_schema and value.schema:
        yield _wrong(("value", "schema"), f"{value.format} has no schema", "leave it out, or choose json or csv")
    if value.format != "csv" and value.delimiter != ",":
        yield _wrong(("value", "delimiter"), f"{value.format} has no delimiter", "leave it out; it belongs to csv")
    elif len(value.delimiter) != 1 or value.delimiter in '"\r\n':
        advice = 'write one character, such as ";" or "\\t"'
        yield _wrong(("value", "delimiter"), f"{value.delimiter!r} can't separate columns", advice)
    if value.format == "bytes" and value.malformed != "fail":
        yield _wrong(("value", "malformed"), "bytes are never malformed", "leave it out")


def _check_schema(draft: Draft) -> Iterator[Mistake]:
    value, source = draft.value, draft.source
    if value is None or value.format not in ("json", "csv") or not value.schema.strip():
        return
    try:
        columns = ddl.columns_of(value.schema)
    except ddl.DdlError as error:
        yield _wrong(("value", "schema"), error.text, error.advice, error.offset)
        return
    taken = {MESSAGE_PREFIX + name: "source.columns" for name in (source.columns if source else ())}
    if value.malformed == "keep":
        taken[MALFORMED_COLUMN] = "malformed: keep"
    for column in columns:
        if value.format == "csv" and column.kind in _NESTED:
            text = f"csv has no {column.kind}, and column {column.name!r} is one"
            yield _wrong_column(column, text, "read it as string, and take it apart by SQL")
        if column.name.lower() in taken:
            text = f"column {column.name!r} has the name of the one that `{taken[column.name.lower()]}` adds"
            yield _wrong_column(column, text, "leave that out, or read the value as text and parse it by SQL")


def _wrong_column(column: ddl.Column, text: str, advice: str) -> Mistake:
    """In a schema of one text the offset says where it is, in a mapping the key does."""
    path = ("value", "schema", column.name)
    return Mistake(path=path, text=text, advice=advice, offset=column.offset, is_key=True)


def _check_watermark(draft: Draft) -> Iterator[Mistake]:
    watermark = draft.watermark
    if watermark is None:
        return
    if duration_s(watermark.delay) is None:
        text = f"{watermark.delay!r} is not a span of time"
        yield _wrong(("watermark", "delay"), text, "write one such as 30s or 10m")
    columns = _columns_before_transform(draft)
    if columns is None:
        return
    kind = columns.get(watermark.column)
    if kind is None:
        known = [name for name, kind in columns.items() if kind in _TIMES]
        otherwise = f"columns are {', '.join(columns)}; `columns: [timestamp]` of the source adds message_timestamp"
        advice = nearest(watermark.column, known, otherwise)
        yield _wrong(("watermark", "column"), f"there is no column {watermark.column!r}", advice)
    elif kind not in _TIMES:
        yield _wrong(("watermark", "column"), f"column {watermark.column!r} is a {kind}", "read it as timestamp")


def _columns_before_transform(draft: Draft) -> dict[str, str] | None:
    """Kinds by name, of the view `messages`; None where they are not known."""
    if draft.value is None or draft.source is None:
        return None
    found = _value_columns(draft.value)
    if found is not None:
        times = {"timestamp": "timestamp"}
        found |= {MESSAGE_PREFIX + name: times.get(name, "string") for name in draft.source.columns}
    return found


def _value_columns(value: Value) -> dict[str, str] | None:
    if value.format in ("text", "bytes"):
        return {"value": "string"}
    try:
        return {column.name: column.kind for column in ddl.columns_of(value.schema)}
    except ddl.DdlError:
        return None


def _check_transform(draft: Draft, folder: str) -> Iterator[Mistake]:
    transform = draft.transform
    if transform is None:
        return
    given = [key for key in ("sql", "python", "function") if getattr(transform, key)]
    if len(given) != 1:
        text = f"the transform has {' and '.join(given)}" if given else "the transform is empty"
        advice = "keep one of them" if given else "give it `sql: …` or `python: module:function`, or leave it out"
        yield Mistake(path=("transform",), text=text, advice=advice, is_missing=not given)
    if transform.sql:
        yield from _check_sql(transform.sql, has_watermark=draft.watermark is not None)
    if transform.python:
        try:
            load_function(transform.python, folder)
        except FunctionError as error:
            yield _wrong(("transform", "python"), error.text, error.advice)


def _check_sql(sql: str, *, has_watermark: bool) -> Iterator[Mistake]:
    """What can be seen without Spark, which reads it for real when the pipeline runs."""
    path = ("transform", "sql")
    # Of the same length, so that places stay what they are.
    bare = _NO_SQL.sub(lambda match: " " * len(match[0]), sql)
    begin = len(bare) - len(bare.lstrip())
    if not bare.strip():
        yield _wrong(path, "the query is empty", f"write one, such as SELECT * FROM {VIEW}")
    elif not _QUERY.match(bare, begin):
        word = bare.split()[0]
        yield _wrong(path, f"{word!r} is no query", "begin with SELECT or WITH; the target says where rows go", begin)
    elif not re.search(rf"\b{VIEW}\b", bare, re.IGNORECASE):
        yield _wrong(path, f"the query does not read the view {VIEW}", f"write FROM {VIEW}")
    else:
        yield from _check_parts(bare, has_watermark=has_watermark)


def _check_parts(bare: str, *, has_watermark: bool) -> Iterator[Mistake]:
    """Of a query without its texts and comments."""
    path = ("transform", "sql")
    end = bare.find(";")
    if end >= 0 and bare[end + 1 :].strip():
        yield _wrong(path, "there is more than one statement", "keep one query", end)
    at = _unbalanced(bare)
    if at is not None:
        yield _wrong(path, f"{bare[at]!r} has no counterpart", "check the brackets", at)
    group = re.search(r"\bGROUP\s+BY\b", bare, re.IGNORECASE)
    if group and not has_watermark:
        advice = "give the pipeline a `watermark: {column: …, delay: 10m}`, and group by a window of that column"
        yield _wrong(path, "a stream that is grouped never knows that a group is complete", advice, group.start())


def _unbalanced(bare: str) -> int | None:
    open_at: list[int] = []
    for at, letter in enumerate(bare):
        if letter == "(":
            open_at.append(at)
        elif letter == ")":
            if not open_at:
                return at
            open_at.pop()
    return open_at[-1] if open_at else None


def _check_trigger(draft: Draft) -> Iterator[Mistake]:
    every = draft.trigger.every
    if not every:
        return
    span_s = duration_s(every)
    if span_s is None:
        yield _wrong(("trigger", "every"), f"{every!r} is not a span of time", "write one such as 500ms, 5s or 10m")
    if draft.ack_last:
        advice = "leave it out, or write `trigger: available-now`: a continuous run acks as it goes on"
        yield _wrong(("ack_last",), "only a run that ends has a last batch to ack", advice)


def _check_target(draft: Draft) -> Iterator[Mistake]:
    target = draft.target
    if isinstance(target, TopicTarget) and target.topic:
        refusal = refuse_topic_name(target.topic)
        if refusal is not None:
            yield _wrong(("target", "topic"), refusal.text, "choose another name")
        yield from _check_loop(draft.source, target.topic)
    elif isinstance(target, ParquetTarget | DeltaTarget):
        yield from _check_folder_target(draft, target)
    elif isinstance(target, PostgresTarget):
        yield from _check_postgres(target)
    elif isinstance(target, ConsoleTarget) and target.rows < 1:
        yield _wrong(("target", "rows"), f"{target.rows} rows can't be shown", "write a number above 0")


def _check_loop(source: Source | None, topic: str) -> Iterator[Mistake]:
    if source is None:
        return
    path = ("target", "topic")
    if topic in source.names:
        yield _wrong(path, f"{topic!r} is a topic of the source too: it would never end", "write to another topic")
    elif source.pattern and not refuse_pattern(source.pattern) and matches(source.pattern.split("."), topic):
        text = f"{topic!r} matches the source's pattern {source.pattern!r}: it would never end"
        yield _wrong(path, text, "write to a topic that does not match")


def _check_folder_target(draft: Draft, target: ParquetTarget | DeltaTarget) -> Iterator[Mistake]:
    kind = "parquet" if isinstance(target, ParquetTarget) else "delta"
    if not target.path:
        yield _wrong(("target", kind), "the folder has no name", "write its path")
        return
    yield from _check_folder(target.path, ("target", kind))
    if kind == "delta" and importlib.util.find_spec("deltalake") is None:
        yield _wrong(("target", kind), "deltalake is not installed", 'pip install "oncemq[spark]"')
    if draft.checkpoint and (_is_within(draft.checkpoint, target.path) or _is_within(target.path, draft.checkpoint)):
        text = "checkpoint and output lie within each other: readers would take one for the other"
        yield _wrong(("checkpoint",), text, "give each a folder of its own")


def _is_within(inner: str, outer: str) -> bool:
    """Readers don't look into folders that begin with an underscore."""
    inner, outer = (path if "://" in path else os.path.realpath(path) for path in (inner, outer))
    below = inner.removeprefix(outer.rstrip("/") + "/")
    return inner == outer or (below != inner and not below.startswith("_"))


def _check_checkpoint(draft: Draft) -> Iterator[Mistake]:
    if draft.checkpoint:
        yield from _check_folder(draft.checkpoint, ("checkpoint",))


def _check_folder(path: str, place: Path) -> Iterator[Mistake]:
    """Whether it is a folder that can be written, or can be made."""
    if "://" in path:
        return
    nearest_path = path
    while not os.path.lexists(nearest_path):
        nearest_path = os.path.dirname(nearest_path) or "."
    if not os.path.isdir(nearest_path):
        yield _wrong(place, f"{path} can't be a folder: {nearest_path} is a file", "choose another path")
    elif not os.access(nearest_path, os.W_OK | os.X_OK):
        yield _wrong(place, f"{nearest_path} can't be written", "change its permissions, or choose another path")


def _check_postgres(target: PostgresTarget) -> Iterator[Mistake]:
    if not target.table.strip():
        yield _wrong(("target", "table"), "the table has no name", "write one")
    if importlib.util.find_spec("psycopg") is None:
        yield _wrong(("target", "postgres"), "psycopg is not installed", 'pip install "oncemq[postgres]"')
        return
    import psycopg

    try:
        given = psycopg.conninfo.conninfo_to_dict(target.url)
    except psycopg.Error as error:
        # What it says repeats the URL, and so perhaps a password.
        reason = type(error).__name__
        yield _wrong(
            ("target", "postgres"), f"this is not a database's URL ({reason})", "write postgresql://USER@HOST/DB"
        )
        return
    if not given:
        yield _wrong(("target", "postgres"), "the database's URL is empty", "write postgresql://USER@HOST/DATABASE")


_PARTS: tuple[Callable[[Draft], Iterator[Mistake]], ...] = (
    _check_name,
    _check_topics,
    _check_start,
    _check_value,
    _check_schema,
    _check_watermark,
    _check_trigger,
    _check_target,
    _check_checkpoint,
)
