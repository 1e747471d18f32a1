"""Which rows a target must have, and which ones it may have."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from oncemq.spark.audit.pipelines.checkpoint import Checkpoint, CoveredRange
from oncemq.spark.audit.pipelines.identity import columns_by_name, find_identity, with_topic_names
from oncemq.spark.audit.pipelines.positions import BrokerPositions
from oncemq.spark.audit.pipelines.shape import EACH, Shape, view_rows
from oncemq.spark.audit.pipelines.subject import Subject
from oncemq.spark.audit.record_lines import explode_ranges
from oncemq.spark.pipeline.transform import apply_transform

RANGES = "topic string, topic_id bigint, start bigint, stop bigint"


class Expected(msgspec.Struct, frozen=True):
    #: `topic`, `offset` and `wanted`, the number of rows that there must be. None: it is not known.
    rows: DataFrame | None
    #: The offsets of which there may be rows.
    allowed: list[CoveredRange]
    #: Whether `rows` has all messages of the complete micro-batches.
    is_complete: bool
    remarks: list[str] = []


def expected_rows(
    subject: Subject,
    shape: Shape,
    before: Checkpoint,
    after: Checkpoint,
    positions: BrokerPositions,
    trimmed: DataFrame | None,
) -> Expected:
    """`trimmed`: the rows of a target that deletes its oldest rows; None for other targets."""
    allowed = after.ranges(committed_only=False)
    if not after.is_whole:
        # Rows of micro-batches that the checkpoint no longer has.
        allowed = [*after.earlier, *(msgspec.structs.replace(each, start=0) for each in allowed)]
    covered = _complete(before, trimmed)
    messages = _messages(before.ranges(committed_only=True))
    if shape.kind == EACH:
        return Expected(_one_each(subject.spark, covered), allowed, _messages(covered) == messages)
    if not shape.is_repeatable:
        remarks = ["lost rows are not judged: the transform is not deterministic"]
        return Expected(None, allowed, is_complete=False, remarks=remarks)
    stored = [_stored(each, positions) for each in covered]
    judged = _messages(stored)
    if not judged:
        remarks = ["lost rows are not judged: the messages are not stored any more"] if messages else []
        return Expected(None, allowed, is_complete=not messages, remarks=remarks)
    if judged == messages:
        return Expected(_recomputed(subject, shape, stored), allowed, is_complete=True)
    remarks = [f"lost rows are judged for the {judged:,} messages that are still stored"]
    return Expected(_recomputed(subject, shape, stored), allowed, is_complete=False, remarks=remarks)


def _messages(ranges: Sequence[CoveredRange]) -> int:
    return sum(each.stop - each.start for each in ranges)


def _complete(checkpoint: Checkpoint, trimmed: DataFrame | None) -> list[CoveredRange]:
    """The ranges of complete micro-batches. If the target deletes its oldest rows, only of those that it has whole."""
    if trimmed is None:
        return checkpoint.ranges(committed_only=True)
    rows = trimmed.groupBy("topic").agg(F.min("offset").alias("offset")).collect()
    found = [_batch_of(checkpoint, row["topic"], row["offset"]) for row in rows]
    numbers = [number for number in found if number is not None]
    if not numbers:
        return []
    # Micro-batches are written in their order, so those after the one with the oldest row are whole.
    batches = tuple(batch for batch in checkpoint.batches if batch.number > min(numbers))
    return msgspec.structs.replace(checkpoint, batches=batches).ranges(committed_only=True)


def _batch_of(checkpoint: Checkpoint, topic: str, offset: int) -> int | None:
    """The micro-batch that covers a message; the oldest one that is kept if it was that one or an earlier one."""
    earlier = ((checkpoint.batches[0].number, each) for each in checkpoint.earlier)
    kept = ((batch.number, each) for batch in checkpoint.batches for each in batch.ranges)
    for number, each in (*earlier, *kept):
        if each.topic == topic and each.start <= offset < each.stop:
            return number
    return None


def _one_each(spark: SparkSession, ranges: Sequence[CoveredRange]) -> DataFrame:
    rows = [(each.topic, each.start, each.stop) for each in ranges]
    frame = spark.createDataFrame(rows, "topic string, start bigint, stop bigint")
    return explode_ranges(frame).withColumn("wanted", F.lit(1))


def _stored(covered: CoveredRange, positions: BrokerPositions) -> CoveredRange:
    topic_id, end, first = positions.topics.get(covered.topic, (0, 0, 0))
    if topic_id != covered.topic_id:
        return msgspec.structs.replace(covered, start=covered.stop)
    start = min(max(covered.start, first), covered.stop)
    return msgspec.structs.replace(covered, start=start, stop=max(start, min(covered.stop, end)))


def _recomputed(subject: Subject, shape: Shape, ranges: Sequence[CoveredRange]) -> DataFrame:
    """The identities of the rows that the transform makes of these messages."""
    (view,) = subject.pipeline.inputs
    starts: dict[str, int] = {}
    ends: dict[str, int] = {}
    for each in ranges:
        starts[each.topic] = min(each.start, starts.get(each.topic, each.start))
        ends[each.topic] = max(each.stop, ends.get(each.topic, 0))
    topics = sorted(starts)
    selection = {"topics": json.dumps(topics), "startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
    views = {view: view_rows(subject, view, selection)}
    result = apply_transform(views, subject.pipeline.transform, subject.folder)
    identity, _ = find_identity(shape.columns, subject.wanted, topics)
    assert identity is not None
    rows = result.select(*identity.select(columns_by_name(result.columns), topics[0]))
    named = with_topic_names(rows, {each.topic_id: each.topic for each in ranges})
    return named.groupBy("topic", "offset").agg(F.count("*").alias("wanted"))
