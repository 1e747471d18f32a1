"""Compares the rows of a target with those that it must have and those that it may have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from oncemq.spark.audit.pipelines.checkpoint import CoveredRange
from oncemq.spark.audit.pipelines.expected import RANGES, Expected


class RowCounts(msgspec.Struct, frozen=True):
    """Numbers of rows, and the first of each kind as (topic, offset)."""

    rows: int
    #: Rows that do not say from which message they come.
    unidentified: int
    counts: dict[str, int]
    examples: dict[str, list[tuple[str, int]]]


def compare_rows(
    spark: SparkSession, rows: DataFrame, expected: Expected, *, kinds: Iterable[str], is_single: bool, limit: int
) -> RowCounts:
    """Count the rows that are lost, duplicated or unexpected; `kinds` says which of these are faults.

    `is_single`: a message has at most one row."""
    identified = rows.where("topic IS NOT NULL AND offset IS NOT NULL")
    found = identified.groupBy("topic", "offset").agg(F.count("*").alias("found"))
    judged = _judged(found, expected).persist()
    try:
        selections = {
            "lost": judged.where("found < wanted").withColumn("rows", F.col("wanted") - F.col("found")),
            "duplicated": _duplicated(judged, is_single=is_single),
            "unexpected": _outside(spark, judged.where("found > 0"), expected.allowed),
        }
        counts, examples = {}, {}
        for kind in kinds:
            counts[kind] = selections[kind].agg(F.sum("rows")).collect()[0][0] or 0
            if counts[kind]:
                first = selections[kind].orderBy("topic", "offset").limit(limit).collect()
                examples[kind] = [(row["topic"], row["offset"]) for row in first]
        total = judged.agg(F.sum("found")).collect()[0][0] or 0
    finally:
        judged.unpersist()
    unidentified = rows.where("topic IS NULL OR offset IS NULL").count()
    return RowCounts(total, unidentified, counts, examples)


def _duplicated(judged: DataFrame, *, is_single: bool) -> DataFrame:
    # If a message may have several rows, their number is known only where the transform could be run again.
    limit = F.lit(1) if is_single else F.col("wanted")
    return judged.where((F.col("found") > limit) & (limit > 0)).withColumn("rows", F.col("found") - limit)


def _judged(found: DataFrame, expected: Expected) -> DataFrame:
    """`topic`, `offset`, `found` and `wanted`: the numbers of rows of each message."""
    if expected.rows is None:
        return found.withColumn("wanted", F.lit(0))
    return found.join(expected.rows, ["topic", "offset"], "full_outer").na.fill(0, ["found", "wanted"])


def _outside(spark: SparkSession, rows: DataFrame, allowed: Sequence[CoveredRange]) -> DataFrame:
    """The rows whose offset no micro-batch covers."""
    ranges = spark.createDataFrame([(each.topic, each.topic_id, each.start, each.stop) for each in allowed], RANGES)
    is_within = (
        (F.col("f.topic") == F.col("r.topic"))
        & (F.col("f.offset") >= F.col("r.start"))
        & (F.col("f.offset") < F.col("r.stop"))
    )
    outside = rows.alias("f").join(F.broadcast(ranges.alias("r")), is_within, "left_anti")
    return outside.withColumn("rows", F.col("found"))
