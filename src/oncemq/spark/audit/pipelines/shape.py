"""How the rows of a pipeline relate to its messages. That decides what can be judged.

Spark analyses the transform on an empty table with the columns of the view. The operators of the plan say whether a
message becomes one row, at most one, any number, or a part of a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from oncemq.spark.audit.pipelines.subject import Subject
from oncemq.spark.options import STREAM_ONLY
from oncemq.spark.pipeline.model import Input
from oncemq.spark.pipeline.runs.stream import source_options
from oncemq.spark.pipeline.transform import apply_transform
from oncemq.spark.pipeline.values.decoder import decode_values
from oncemq.spark.source.offset_options import STARTING
from oncemq.spark.source.topic_selection import SELECTING

EACH = "each"
SOME = "some"
SEVERAL = "several"
OTHER = "other"

_KEEPS = {"Project", "SubqueryAlias", "View", "RepartitionByExpression", "Repartition"}
_DROPS = {"Filter"}
_MULTIPLIES = {"Generate", "Expand"}
#: Functions that Spark calls deterministic, because they have one value in a query.
_TIMES = re.compile(r"\b(current_(timestamp|date|time)|now|localtimestamp)\b", re.IGNORECASE)


class Shape(msgspec.Struct, frozen=True):
    kind: str
    #: The columns of the rows, before they are encoded for a topic.
    columns: tuple[str, ...]
    #: Whether the transform makes the same rows of the same messages again.
    is_repeatable: bool


def pipeline_shape(subject: Subject) -> Shape:
    pipeline = subject.pipeline
    if len(pipeline.inputs) != 1 or pipeline.tables or pipeline.output != "append":
        return Shape(OTHER, (), is_repeatable=False)
    ((view, each),) = pipeline.inputs.items()
    rows = view_rows(subject, view, {})
    empty = subject.spark.createDataFrame([], rows.schema)
    result = apply_transform({view: empty}, pipeline.transform, subject.folder)
    kind = plan_shape(result)
    if kind == EACH and _drops_values(each):
        kind = SOME
    return Shape(kind, tuple(result.columns), _is_repeatable(result))


def view_rows(subject: Subject, view: str, selection: Mapping[str, str]) -> DataFrame:
    """The rows of a view as a batch. `selection`: options that say which messages are read; {} = all of the source."""
    each = subject.pipeline.inputs[view]
    given = source_options(subject.pipeline, view, subject.broker)
    replaced = {*STREAM_ONLY, *STARTING, *(SELECTING if selection else ())}
    options = {name: value for name, value in given.items() if name not in replaced} | dict(selection)
    messages = subject.spark.read.format("oncemq").options(**options).load()
    return decode_values(messages, each.value, each.source.columns)


def _drops_values(each: Input) -> bool:
    return each.value.policy in ("drop", "dead_letter")


def plan_shape(result: DataFrame) -> str:
    """The relation between the rows of a batch and those of the one table that it is derived from."""
    nodes = list(_nodes(_execution(result).optimizedPlan()))
    names = {node.nodeName() for node in nodes if node.children().size()}
    leaves = sum(not node.children().size() for node in nodes)
    has_subquery = any(node.subqueries().size() for node in nodes)
    if leaves != 1 or has_subquery or not names <= _KEEPS | _DROPS | _MULTIPLIES:
        return OTHER
    if _MULTIPLIES & names:
        return SEVERAL
    return SOME if _DROPS & names else EACH


def _is_repeatable(result: DataFrame) -> bool:
    plan = _execution(result).analyzed()
    return bool(plan.deterministic()) and not _TIMES.search(plan.toString())


def _execution(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution()


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))
