"""Computes latency and lag over time from the records of clients (docs/audit.md).

The time of each line comes from the clock of its client. With several machines, latency is only as exact as their
clocks. A message is in the selected span of time if its put was confirmed in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from oncemq.spark.audit.record_lines import KEY, PUT, explode_ranges, of_kind, read_lines, start_and_stop
from oncemq.spark.stats.model import LagStats, LatencyStats, LatencyWindow
from oncemq.spark.stats.percentiles import percentile_columns
from oncemq.spark.stats.selection import StatsSelection

PUT_LATENCY = "put"
DELIVERY_LATENCY = "delivery"


class RecordedStats(NamedTuple):
    latencies: tuple[LatencyStats, ...] = ()
    windows: tuple[LatencyWindow, ...] = ()
    lags: tuple[LagStats, ...] = ()


class Records:
    """The records of a folder, as far as they are about the selected topics. Raises SettingInvalid without any."""

    def __init__(self, spark: SparkSession, folder: str, selection: StatsSelection) -> None:
        self._lines = read_lines(spark, folder)
        self._selection = selection
        stored = of_kind(self._lines, "stored").where("first >= 0")
        names = selection.names(row.topic for row in stored.select("topic").distinct().collect())
        # The same put may be confirmed twice: to the process that sent it, and to one that sent it again.
        columns = ("broker", "topic_id", "topic", "first", "count")
        self._stored = (
            stored.where(F.col("topic").isin(names)).groupBy(*PUT, *columns).agg(F.min("at_ms").alias("stored_ms"))
        )
        self._selected = self._stored.where(_is_within(selection))

    @property
    def span_ms(self) -> tuple[int, int] | None:
        """The times of the first and the last selected put."""
        first, last = self._selected.agg(F.min("stored_ms"), F.max("stored_ms")).collect()[0]
        return None if first is None else (first, last)

    def stats(self, width_s: float) -> RecordedStats:
        latencies: list[LatencyStats] = []
        windows: list[LatencyWindow] = []
        for what, rows in ((PUT_LATENCY, self._puts()), (DELIVERY_LATENCY, self._deliveries())):
            latencies += [LatencyStats(row.topic, what, *_figures(row)) for row in _aggregate(rows, "topic")]
            by_window = _aggregate(rows, "topic", window_start(width_s))
            windows += [LatencyWindow(row.topic, what, row.start_ms, *_figures(row)) for row in by_window]
        return RecordedStats(tuple(latencies), tuple(windows), tuple(self._lags(width_s)))

    def _puts(self) -> DataFrame:
        """One row for each message."""
        sent = of_kind(self._lines, "sent").groupBy(*PUT).agg(F.min("at_ms").alias("sent_ms"))
        ms = F.greatest(F.lit(0), F.col("stored_ms") - F.col("sent_ms"))
        first, stop = F.lit(0).cast("bigint").alias("start"), F.col("count").alias("stop")
        puts = self._selected.join(sent, PUT).select(
            "topic", F.col("stored_ms").alias("at_ms"), ms.alias("ms"), first, stop
        )
        return explode_ranges(puts).drop("offset")

    def _deliveries(self) -> DataFrame:
        """One row for each message and subscription, with the time of the first delivery."""
        got = start_and_stop(of_kind(self._lines, "got").select(*KEY, "at_ms", "ranges"), "ranges")
        first = explode_ranges(got).groupBy(*KEY, "offset").agg(F.min("at_ms").alias("at_ms"))
        start, stop = F.col("first").alias("start"), (F.col("first") + F.col("count")).alias("stop")
        stored = self._selected.select("broker", "topic_id", "topic", "stored_ms", start, stop)
        joined = first.join(explode_ranges(stored), ["broker", "topic_id", "offset"])
        ms = F.greatest(F.lit(0), F.col("at_ms") - F.col("stored_ms"))
        return joined.select("topic", "at_ms", ms.alias("ms"))

    def _lags(self, width_s: float) -> Iterator[LagStats]:
        """The lag at the end of each window: the end of the topic minus the acked offset, as far as they are recorded.

        Earlier windows determine the positions of later ones, so all of them are read, and those of the selected span
        are returned."""
        ends = self._stored.groupBy("broker", "topic_id", "topic", window_start(width_s, "stored_ms")).agg(
            F.max(F.col("first") + F.col("count")).alias("end")
        )
        acked = of_kind(self._lines, "acked", "opened", "subscribed").where("topic_id > 0 AND NOT shared")
        positions = acked.groupBy(*KEY, window_start(width_s)).agg(F.max("acked").alias("acked"))
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
                if self._selection.overlaps(start_ms, start_ms + width_s * 1000):
                    yield LagStats(topic, name, start_ms, lag)


def _is_within(selection: StatsSelection) -> Column:
    found = F.lit(True)
    if selection.since_ms is not None:
        found = found & (F.col("stored_ms") >= selection.since_ms)
    if selection.until_ms is not None:
        found = found & (F.col("stored_ms") < selection.until_ms)
    return found


def _aggregate(rows: DataFrame, *by: str | Column) -> list[Row]:
    found = rows.groupBy(*by).agg(F.count("*").alias("messages"), *percentile_columns("ms", "ms"))
    return found.orderBy(*found.columns[: len(by)]).collect()


def _figures(row: Row) -> tuple[int, int, int, int]:
    return row.messages, row.ms_p50, row.ms_p99, row.ms_max


def _lag_by_window(ends: dict[int, int], positions: dict[int, int]) -> Iterable[tuple[int, int]]:
    end = acked = 0
    first_ms = min(positions)
    for start_ms in sorted({*ends, *positions}):
        end, acked = max(end, ends.get(start_ms, 0)), max(acked, positions.get(start_ms, 0))
        if start_ms >= first_ms:
            yield start_ms, max(0, end - acked)


def window_start(width_s: float, column: str = "at_ms") -> Column:
    """The start of the window of a time in milliseconds. Whole numbers: fractions of seconds are not exact."""
    width_ms = round(width_s * 1000)
    return (F.col(column) - F.pmod(F.col(column), F.lit(width_ms))).alias("start_ms")
