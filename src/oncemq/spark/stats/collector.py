"""Collects statistics: one pass over the topics with Spark, one over client records, and requests to the broker."""

from __future__ import annotations

import time
from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.replies import SubscriptionInfo
from oncemq.spark.broker import Broker
from oncemq.spark.connections import shared_client
from oncemq.spark.stats.latency import RecordedStats, Records, window_start
from oncemq.spark.stats.model import Stats, SubscriptionStats, TopicStats, WindowStats
from oncemq.spark.stats.percentiles import percentile_columns
from oncemq.spark.stats.selection import StatsSelection

#: The approximate number of windows if their length is not given.
_WINDOWS = 60
#: Times of messages are milliseconds.
_WINDOW_S_MIN = 0.001
#: More windows would not be readable.
_WINDOWS_MAX = 2_000
_TIMEOUT_S = 30.0


def collect_stats(
    spark: SparkSession,
    broker: Broker,
    selection: StatsSelection,
    *,
    window_s: float | None = None,
    records: str | None = None,
) -> Stats:
    """Collect statistics of the selected messages. `records` is a folder of client records, which add latency and lag
    over time. Raises SettingInvalid."""
    columns = {"columns": "topic,timestamp,key,value"}
    rows = spark.read.format("oncemq").options(**broker.options, **selection.source_options, **columns).load()
    at_ms, size = F.unix_millis("timestamp").alias("at_ms"), F.length("value").alias("size")
    # Kept, because messages may arrive and be deleted meanwhile: topics and their windows must have the same ones.
    sized = rows.select("topic", F.xxhash64("key").alias("key_hash"), F.isnotnull("key").alias("has_key"), at_ms, size)
    sized = sized.persist()
    try:
        topics = _topics(sized)
        recorder = Records(spark, records, selection) if records else None
        width_s = _window_width(_span_s(topics, recorder), window_s)
        windows = _windows(sized, width_s)
    finally:
        sized.unpersist()
    recorded = recorder.stats(width_s) if recorder else RecordedStats()
    client = shared_client(broker, _TIMEOUT_S)
    return Stats(
        made_ms=round(time.time() * 1000),
        broker=str(broker),
        window_s=width_s,
        topics=topics,
        windows=windows,
        # Topics without stored messages have subscriptions too: all their messages are acked.
        subscriptions=tuple(_subscriptions(client, selection.names(topic.name for topic in client.topics()))),
        latencies=recorded.latencies,
        latency_windows=recorded.windows,
        lags=recorded.lags,
    )


def _topics(sized: DataFrame) -> tuple[TopicStats, ...]:
    rows = sized.groupBy("topic").agg(
        *_size_columns(),
        F.min("at_ms").alias("first_ms"),
        F.max("at_ms").alias("last_ms"),
        F.approx_count_distinct(F.when(F.col("has_key"), F.col("key_hash"))).alias("keys"),
    )
    return tuple(
        TopicStats(
            topic=row.topic,
            **_size_stats(row),
            first_ms=row.first_ms,
            last_ms=row.last_ms,
            keys=row["keys"],
            per_s=row.messages / max(1.0, (row.last_ms - row.first_ms) / 1000),
        )
        for row in rows.orderBy("topic").collect()
    )


def _windows(sized: DataFrame, width_s: float) -> tuple[WindowStats, ...]:
    rows = sized.groupBy("topic", window_start(width_s)).agg(*_size_columns()).orderBy("topic", "start_ms")
    return tuple(WindowStats(topic=row.topic, start_ms=row.start_ms, **_size_stats(row)) for row in rows.collect())


def _size_columns() -> Iterable[Column]:
    return (
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        *percentile_columns("size", "size"),
    )


def _size_stats(row: Row) -> dict[str, int]:
    return {name: row[name] for name in ("messages", "bytes", "size_p50", "size_p99", "size_max")}


def _span_s(topics: Iterable[TopicStats], records: Records | None) -> float:
    """The time between the first and the last message, stored or recorded."""
    times = [time_ms for topic in topics for time_ms in (topic.first_ms, topic.last_ms)]
    times += (records.span_ms if records else None) or ()
    return (max(times) - min(times)) / 1000 if times else 0.0


def _window_width(span_s: float, wanted_s: float | None) -> float:
    """The length of a window. By default, a round number that makes at most about _WINDOWS windows.

    Raises SettingInvalid for more than _WINDOWS_MAX windows."""
    if wanted_s is not None:
        if wanted_s < _WINDOW_S_MIN:
            raise errors.SettingInvalid(f"windows of {wanted_s:g} s are too short: use longer windows, of 1 ms or more")
        if span_s / wanted_s > _WINDOWS_MAX:
            raise errors.SettingInvalid(
                f"windows of {wanted_s:g} s are too short for {span_s:.0f} s of messages: there would be more than "
                f"{_WINDOWS_MAX:,}; use longer windows"
            )
        return wanted_s
    widths = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 24 * 3600)
    return next((width for width in widths if span_s / width <= _WINDOWS), 7 * 24 * 3600.0)


def _subscriptions(client: Client, topics: Iterable[str]) -> Iterable[SubscriptionStats]:
    for topic in topics:
        try:
            for info in client.subscriptions(topic):
                name = f"{info.subscriber} ({info.pattern})" if info.pattern else info.subscriber
                yield SubscriptionStats(topic, name, info.lag, _oldest_s(client, info))
        except errors.TopicUnknown:
            continue


def _oldest_s(client: Client, info: SubscriptionInfo) -> float | None:
    if not info.lag:
        return None
    try:
        for message in client.read(info.topic, info.acked, stop=info.acked + 1):
            return max(0.0, time.time() - message.timestamp_ms / 1000)
    except (errors.RangeGone, errors.TopicUnknown):
        # The message has expired or was dropped.
        pass
    return None
