"""Checks of the section `transform`. Only Spark parses the SQL, when the pipeline runs; this finds obvious errors."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oncemq.spark.pipeline.functions import FunctionError, load_function
from oncemq.spark.pipeline.model import PartialPipeline
from oncemq.spark.pipeline.problems import Problem, problem
from oncemq.spark.targets.declarations import TopicTarget

_QUERY = re.compile(r"(select|with|from|values|table|\()", re.IGNORECASE)
_COMMENTS_AND_LITERALS = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_SQL = ("transform", "sql")


def check_transform(partial: PartialPipeline, folder: str) -> Iterator[Problem]:
    transform = partial.transform
    if transform is None:
        if partial.sources or partial.tables:
            advice = "add a `transform:` with `sql` or `python`"
            yield Problem(path=("transform",), text="several views need a transform", advice=advice, is_missing=True)
        return
    given = [key for key in ("sql", "python", "function") if getattr(transform, key)]
    if len(given) != 1:
        text = f"the transform has {' and '.join(given)}" if given else "the transform is empty"
        advice = "keep one of them" if given else "add `sql: …` or `python: module:function`, or remove it"
        yield Problem(path=("transform",), text=text, advice=advice, is_missing=not given)
    if transform.sql:
        yield from _check_sql(transform.sql, partial)
    if transform.python:
        try:
            load_function(transform.python, folder)
        except FunctionError as error:
            yield problem(("transform", "python"), error.text, error.advice)


def _check_sql(sql: str, partial: PartialPipeline) -> Iterator[Problem]:
    # Replaced by spaces, so that the offsets do not change.
    bare = _COMMENTS_AND_LITERALS.sub(lambda match: " " * len(match[0]), sql)
    start = len(bare) - len(bare.lstrip())
    if not bare.strip():
        yield problem(_SQL, "the query is empty", f"write one, such as SELECT * FROM {partial.views[0]}")
    elif not _QUERY.match(bare, start):
        word = bare.split()[0]
        advice = "begin with SELECT or WITH; the target defines where rows are written"
        yield problem(_SQL, f"{word!r} is not a query", advice, start)
    else:
        yield from _check_views(bare, partial)
        yield from _check_query(bare, partial)


def _check_views(bare: str, partial: PartialPipeline) -> Iterator[Problem]:
    for view in partial.views:
        if not re.search(rf"\b{re.escape(view)}\b", bare, re.IGNORECASE):
            advice = f"write FROM {view}" + (", or remove it from the file" if len(partial.views) > 1 else "")
            yield problem(_SQL, f"the query does not read the view {view}", advice)


def _check_query(bare: str, partial: PartialPipeline) -> Iterator[Problem]:
    """Check a query without its comments and literals."""
    end = bare.find(";")
    if end >= 0 and bare[end + 1 :].strip():
        yield problem(_SQL, "there is more than one statement", "keep one query", end)
    at = _unbalanced_bracket(bare)
    if at is not None:
        yield problem(_SQL, f"{bare[at]!r} has no matching bracket", "check the brackets", at)
    group = re.search(r"\bGROUP\s+BY\b", bare, re.IGNORECASE)
    has_watermark = any(each.watermark is not None for each in partial.inputs.values())
    if group and not has_watermark and partial.output == "append":
        advice = "give the pipeline a `watermark: {column: …, delay: 10m}`, and group by a window of that column"
        if isinstance(partial.target, TopicTarget):
            advice += ", or write `output: update`"
        yield problem(_SQL, "without a watermark, a group of a stream is never complete", advice, group.start())


def _unbalanced_bracket(bare: str) -> int | None:
    open_at: list[int] = []
    for at, letter in enumerate(bare):
        if letter == "(":
            open_at.append(at)
        elif letter == ")":
            if not open_at:
                return at
            open_at.pop()
    return open_at[-1] if open_at else None
