"""Compares the rows of a target with those that it must have and those that it may have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from oncemq.spark.audit.pipelines.checkpoint import CoveredRange
from oncemq.spark.audit.pipelines.expected import RANGES, Expected

_IS_IDENTIFIED = "topic IS NOT NULL AND offset IS NOT NULL"
_COUNTED = ("identified", "unidentified", "lost", "duplicated")


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
    judged = _judged(rows, expected, is_single=is_single).persist()
    try:
        # The target is read once, by this query.
        sums = judged.agg(*(F.sum(name).alias(name) for name in _COUNTED)).collect()[0]
        counts = {name: sums[name] or 0 for name in _COUNTED}
        identified = judged.where(_IS_IDENTIFIED)
        faulty = {kind: identified.where(F.col(kind) > 0) for kind in ("lost", "duplicated")}
        faulty["unexpected"] = _outside(spark, identified.where("found > 0"), expected.allowed)
        counts["unexpected"] = faulty["unexpected"].agg(F.sum("found")).collect()[0][0] or 0
        examples = {}
        for kind in kinds:
            if counts[kind]:
                first = faulty[kind].orderBy("topic", "offset").limit(limit).collect()
                examples[kind] = [(row["topic"], row["offset"]) for row in first]
    finally:
        judged.unpersist()
    return RowCounts(counts["identified"], counts["unidentified"], {kind: counts[kind] for kind in kinds}, examples)


def _judged(rows: DataFrame, expected: Expected, *, is_single: bool) -> DataFrame:
    """For each message, how many rows were `found` and how many are `wanted`, and what follows from these numbers. Rows
    that do not say from which message they come are counted as `unidentified` only."""
    found = rows.groupBy("topic", "offset").agg(F.count("*").alias("found"))
    if expected.rows is None:
        judged = found.withColumn("wanted", F.lit(0))
    else:
        judged = found.join(expected.rows, ["topic", "offset"], "full_outer").na.fill(0, ["found", "wanted"])
    # If a message may have several rows, their number is known only where the transform could be run again.
    limit = F.lit(1) if is_single else F.col("wanted")
    is_identified = F.expr(_IS_IDENTIFIED)
    is_duplicated = is_identified & (F.col("found") > limit) & (limit > 0)
    return (
        judged.withColumn("identified", F.when(is_identified, F.col("found")))
        .withColumn("unidentified", F.when(~is_identified, F.col("found")))
        .withColumn("lost", F.greatest(F.col("wanted") - F.col("found"), F.lit(0)))
        .withColumn("duplicated", F.when(is_duplicated, F.col("found") - limit).otherwise(0))
    )


def _outside(spark: SparkSession, rows: DataFrame, allowed: Sequence[CoveredRange]) -> DataFrame:
    """The rows whose offset no micro-batch covers."""
    ranges = spark.createDataFrame([(each.topic, each.topic_id, each.start, each.stop) for each in allowed], RANGES)
    is_within = (
        (F.col("f.topic") == F.col("r.topic"))
        & (F.col("f.offset") >= F.col("r.start"))
        & (F.col("f.offset") < F.col("r.stop"))
    )
    return rows.alias("f").join(F.broadcast(ranges.alias("r")), is_within, "left_anti")
