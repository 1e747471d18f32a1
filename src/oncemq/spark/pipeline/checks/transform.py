"""Checks of the section `transform`. Only Spark parses the SQL, when the pipeline runs; this finds obvious errors."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oncemq.spark.pipeline.functions import FunctionError, load_function
from oncemq.spark.pipeline.model import VIEW, PartialPipeline
from oncemq.spark.pipeline.problems import Problem, problem

_QUERY = re.compile(r"(select|with|from|values|table|\()", re.IGNORECASE)
_COMMENTS_AND_LITERALS = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_SQL = ("transform", "sql")


def check_transform(partial: PartialPipeline, folder: str) -> Iterator[Problem]:
    transform = partial.transform
    if transform is None:
        return
    given = [key for key in ("sql", "python", "function") if getattr(transform, key)]
    if len(given) != 1:
        text = f"the transform has {' and '.join(given)}" if given else "the transform is empty"
        advice = "keep one of them" if given else "add `sql: …` or `python: module:function`, or remove it"
        yield Problem(path=("transform",), text=text, advice=advice, is_missing=not given)
    if transform.sql:
        yield from _check_sql(transform.sql, has_watermark=partial.watermark is not None)
    if transform.python:
        try:
            load_function(transform.python, folder)
        except FunctionError as error:
            yield problem(("transform", "python"), error.text, error.advice)


def _check_sql(sql: str, *, has_watermark: bool) -> Iterator[Problem]:
    # Replaced by spaces, so that the offsets do not change.
    bare = _COMMENTS_AND_LITERALS.sub(lambda match: " " * len(match[0]), sql)
    start = len(bare) - len(bare.lstrip())
    if not bare.strip():
        yield problem(_SQL, "the query is empty", f"write one, such as SELECT * FROM {VIEW}")
    elif not _QUERY.match(bare, start):
        word = bare.split()[0]
        advice = "begin with SELECT or WITH; the target defines where rows are written"
        yield problem(_SQL, f"{word!r} is not a query", advice, start)
    elif not re.search(rf"\b{VIEW}\b", bare, re.IGNORECASE):
        yield problem(_SQL, f"the query does not read the view {VIEW}", f"write FROM {VIEW}")
    else:
        yield from _check_query(bare, has_watermark=has_watermark)


def _check_query(bare: str, *, has_watermark: bool) -> Iterator[Problem]:
    """Check a query without its comments and literals."""
    end = bare.find(";")
    if end >= 0 and bare[end + 1 :].strip():
        yield problem(_SQL, "there is more than one statement", "keep one query", end)
    at = _unbalanced_bracket(bare)
    if at is not None:
        yield problem(_SQL, f"{bare[at]!r} has no matching bracket", "check the brackets", at)
    group = re.search(r"\bGROUP\s+BY\b", bare, re.IGNORECASE)
    if group and not has_watermark:
        advice = "give the pipeline a `watermark: {column: …, delay: 10m}`, and group by a window of that column"
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
