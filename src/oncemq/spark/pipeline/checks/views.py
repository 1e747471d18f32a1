"""Checks of the names that `sources` and `tables` give to views, and of the section `tables`."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator

from oncemq.protocol.names import refuse_topic_name
from oncemq.spark.pipeline import ddl
from oncemq.spark.pipeline.checks.storage import scheme_of
from oncemq.spark.pipeline.checks.value import check_value
from oncemq.spark.pipeline.model import PartialPipeline, Table, Value
from oncemq.spark.pipeline.problems import Path, Problem, local_problem, problem

_VIEW = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_KINDS = ("parquet", "csv", "delta", "topic")


def check_views(partial: PartialPipeline) -> Iterator[Problem]:
    paths: list[Path] = [("sources", name) for name in partial.sources]
    paths += [("tables", name) for name in partial.tables]
    seen = set() if partial.sources else {name.lower() for name in partial.inputs}
    for path in paths:
        name = str(path[-1])
        if not _VIEW.fullmatch(name):
            text = f"{name!r} can't be the name of a view"
            advice = "use letters, digits and _, and begin with a letter or _"
            yield Problem(path=path, text=text, advice=advice, is_key=True)
        elif name.lower() in seen:
            text = f"there is another view {name!r}"
            yield Problem(path=path, text=text, advice="choose another name; case does not matter", is_key=True)
        seen.add(name.lower())
    for name, table in partial.tables.items():
        yield from _check_table(table, ("tables", name))


def _check_table(table: Table, path: Path) -> Iterator[Problem]:
    given = [kind for kind in _KINDS if getattr(table, kind)]
    if len(given) != 1:
        text = f"the table has {' and '.join(given)}" if given else "the table names neither files nor a topic"
        advice = f"give it exactly one of {', '.join(_KINDS)}"
        yield Problem(path=path, text=text, advice=advice, is_missing=not given)
        return
    kind = given[0]
    yield from _check_schema(table, kind, path)
    if kind == "topic":
        refusal = refuse_topic_name(table.topic)
        if refusal is not None:
            yield problem((*path, "topic"), refusal.text, "choose another name")
        yield from check_value(table.value, table.columns, (*path, "value"))
        if table.value.policy == "dead_letter":
            text = "a table has no dead letters, because it is read again in each micro-batch"
            yield problem((*path, "value", "on_error"), text, "write fail or drop")
        return
    if table.value != Value() or table.columns:
        key = "value" if table.value != Value() else "columns"
        yield Problem(
            path=(*path, key), text=f"{kind} has no {key!r}", advice="it is for topics; remove it", is_key=True
        )
    if kind == "delta" and importlib.util.find_spec("deltalake") is None:
        yield problem((*path, kind), "deltalake is not installed", 'pip install "oncemq[spark]"')
    where = getattr(table, kind)
    if not scheme_of(where) and not os.path.exists(where):
        yield local_problem((*path, kind), f"there is no {where}", "check the path; it is relative to the file")


def _check_schema(table: Table, kind: str, path: Path) -> Iterator[Problem]:
    if kind == "csv" and not table.schema.strip():
        yield Problem(
            path=path, text="csv needs a schema", advice="add `schema: id bigint, name string`", is_missing=True
        )
    elif kind != "csv" and table.schema:
        yield problem((*path, "schema"), f"{kind} has its own schema", "remove it; it is for csv")
    elif table.schema:
        try:
            ddl.parse_columns(table.schema)
        except ddl.DdlError as error:
            yield problem((*path, "schema"), error.text, error.advice, error.offset)
