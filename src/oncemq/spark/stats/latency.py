"""Computes latency and lag over time from the records of clients (docs/audit.md).

The time of each line comes from the clock of its client. With several machines, latency is only as exact as their
clocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from oncemq.spark.audit.record_lines import KEY, PUT, explode_ranges, of_kind, read_lines, start_and_stop
from oncemq.spark.stats.model import LagStats, LatencyStats

PUT_LATENCY = "put"
DELIVERY_LATENCY = "delivery"


class RecordedStats(NamedTuple):
    latencies: tuple[LatencyStats, ...]
    lags: tuple[LagStats, ...]


def read_latency(spark: SparkSession, folder: str, width_s: float) -> RecordedStats:
    """Read the records of a folder. Raises SettingInvalid if there are none."""
    lines = read_lines(spark, folder)
    stored = (
        of_kind(lines, "stored")
        .where("first >= 0")
        .select(*PUT, "broker", "topic_id", "topic", "first", "count", F.col("at_ms").alias("stored_ms"))
    )
    found = [*_latencies(_puts(lines, stored), PUT_LATENCY, width_s)]
    found += _latencies(_deliveries(lines, stored), DELIVERY_LATENCY, width_s)
    return RecordedStats(tuple(found), tuple(_lags(lines, stored, width_s)))


def _puts(lines: DataFrame, stored: DataFrame) -> DataFrame:
    """One row for each batch, with its number of messages."""
    sent = of_kind(lines, "sent").select(*PUT, F.col("at_ms").alias("sent_ms"))
    joined = stored.join(sent, PUT)
    return joined.select(
        "topic", F.col("stored_ms").alias("at_ms"), (F.col("stored_ms") - F.col("sent_ms")).alias("ms"), "count"
    )


def _deliveries(lines: DataFrame, stored: DataFrame) -> DataFrame:
    """One row for each message and subscription, with the time of the first delivery."""
    got = start_and_stop(of_kind(lines, "got").select(*KEY, "at_ms", "ranges"), "ranges")
    first = explode_ranges(got).groupBy(*KEY, "offset").agg(F.min("at_ms").alias("at_ms"))
    ranges = stored.select(
        "broker",
        "topic_id",
        "topic",
        "stored_ms",
        F.col("first").alias("start"),
        (F.col("first") + F.col("count")).alias("stop"),
    )
    joined = first.join(explode_ranges(ranges), ["broker", "topic_id", "offset"])
    return joined.select(
        "topic",
        "at_ms",
        F.greatest(F.lit(0), F.col("at_ms") - F.col("stored_ms")).alias("ms"),
        F.lit(1).alias("count"),
    )


def _latencies(rows: DataFrame, what: str, width_s: float) -> Iterable[LatencyStats]:
    stats = rows.groupBy("topic", _window(width_s)).agg(
        F.sum("count").alias("messages"),
        F.expr("percentile(ms, array(0.5, 0.99), count)").alias("quantiles"),
        F.max("ms").alias("longest"),
    )
    for row in stats.orderBy("topic", "start_ms").collect():
        p50, p99 = row.quantiles
        yield LatencyStats(row.topic, what, row.start_ms, row.messages, p50, p99, row.longest)


def _lags(lines: DataFrame, stored: DataFrame, width_s: float) -> Iterable[LagStats]:
    """The lag at the end of each window: the end of the topic minus the acked offset, as far as they are recorded."""
    ends = stored.groupBy("broker", "topic_id", "topic", _window(width_s, "stored_ms")).agg(
        F.max(F.col("first") + F.col("count")).alias("end")
    )
    acked = of_kind(lines, "acked", "opened", "subscribed").where("topic_id > 0 AND NOT shared")
    positions = acked.groupBy(*KEY, _window(width_s)).agg(F.max("acked").alias("acked"))
    topics: dict[tuple[str, int], str] = {}
    topic_ends: dict[tuple[str, int], dict[int, int]] = {}
    for row in ends.collect():
        topics[row.broker, row.topic_id] = row.topic
        topic_ends.setdefault((row.broker, row.topic_id), {})[row.start_ms] = row.end
    rows = positions.orderBy(*KEY, "start_ms").collect()
    for (broker, topic_id, subscriber, pattern), group in groupby(rows, key=lambda row: tuple(row[: len(KEY)])):
        topic = topics.get((broker, topic_id))
        if topic is None:
            continue
        name = f"{subscriber} ({pattern})" if pattern else subscriber
        acked_by_window = {row.start_ms: row.acked for row in group}
        for start_ms, lag in _lag_by_window(topic_ends[broker, topic_id], acked_by_window):
            yield LagStats(topic, name, start_ms, lag)


def _lag_by_window(ends: dict[int, int], positions: dict[int, int]) -> Iterable[tuple[int, int]]:
    end = acked = 0
    first_ms = min(positions)
    for start_ms in sorted({*ends, *positions}):
        end, acked = max(end, ends.get(start_ms, 0)), max(acked, positions.get(start_ms, 0))
        if start_ms >= first_ms:
            yield start_ms, max(0, end - acked)


def _window(width_s: float, column: str = "at_ms") -> Column:
    width_ms = round(width_s * 1000)
    return (F.floor(F.col(column) / width_ms) * width_ms).alias("start_ms")
