"""Figures out of a broker: two passes over the topics with Spark, and a few questions to the broker itself."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.replies import SubscriptionInfo
from oncemq.spark.connections import shared_client
from oncemq.spark.stats import latency
from oncemq.spark.stats.figures import Figures, SubscriptionFigures, TopicFigures, WindowFigures

#: Where nobody says how long a window is, there are about so many.
_WINDOWS = 60
#: More of them nobody can look at.
_WINDOWS_MAX = 2_000
_TIMEOUT_S = 30.0


def gather(
    spark: SparkSession,
    url: str,
    source: Mapping[str, str],
    *,
    window_s: float | None = None,
    records: str | None = None,
) -> Figures:
    """Of the messages that `source`, options of `format("oncemq")`, chooses. `records` is a folder in which clients
    have recorded their work: it brings latency, and lag over time. Raises SettingInvalid."""
    columns = {"columns": "topic,timestamp,key,value"}
    rows = spark.read.format("oncemq").options(url=url, **source, **columns).load()
    at_s, size = F.col("timestamp").cast("double").alias("at_s"), F.length("value").alias("size")
    sized = rows.select("topic", "key", at_s, size)
    topics = _topics(sized)
    width_s = _width(topics, window_s)
    client = shared_client(url, _TIMEOUT_S)
    found = latency.gather(spark, records, width_s) if records else latency.NOTHING
    return Figures(
        made_ms=round(time.time() * 1000),
        broker=url,
        window_s=width_s,
        topics=topics,
        windows=_windows(sized, width_s),
        subscriptions=tuple(_subscriptions(client, [topic.topic for topic in topics])),
        latencies=found.latencies,
        lags=found.lags,
    )


def _topics(sized: DataFrame) -> tuple[TopicFigures, ...]:
    rows = sized.groupBy("topic").agg(
        *_size_figures(),
        F.min("at_s").alias("first_s"),
        F.max("at_s").alias("last_s"),
        F.approx_count_distinct("key").alias("keys"),
    )
    return tuple(
        TopicFigures(
            topic=row.topic,
            **_sizes_in(row),
            first_ms=round(row.first_s * 1000),
            last_ms=round(row.last_s * 1000),
            keys=row["keys"],
        )
        for row in rows.orderBy("topic").collect()
    )


def _windows(sized: DataFrame, width_s: float) -> tuple[WindowFigures, ...]:
    start = (F.floor(F.col("at_s") / width_s) * width_s).alias("start_s")
    rows = sized.groupBy("topic", start).agg(*_size_figures()).orderBy("topic", "start_s")
    return tuple(
        WindowFigures(topic=row.topic, start_ms=round(row.start_s * 1000), **_sizes_in(row)) for row in rows.collect()
    )


def _size_figures() -> Iterable[Column]:
    return (
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.percentile_approx("size", [0.5, 0.99]).alias("quantiles"),
        F.max("size").alias("size_max"),
    )


def _sizes_in(row: Row) -> dict[str, int]:
    p50, p99 = row.quantiles
    found = {"messages": row.messages, "bytes": row.bytes, "size_max": row.size_max}
    return {**found, "size_p50": p50, "size_p99": p99}


def _width(topics: Iterable[TopicFigures], wanted_s: float | None) -> float:
    """Of a window. Without a wish, a round number that makes about as many as can be looked at."""
    first = min((topic.first_ms for topic in topics), default=0)
    last = max((topic.last_ms for topic in topics), default=0)
    span_s = (last - first) / 1000
    if wanted_s is not None:
        if span_s / wanted_s > _WINDOWS_MAX:
            raise errors.SettingInvalid(
                f"{span_s:.0f} s in windows of {wanted_s:g} s are more than {_WINDOWS_MAX:,} windows: take longer ones"
            )
        return wanted_s
    round_ones = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 24 * 3600)
    return next((width for width in round_ones if span_s / width <= _WINDOWS), 7 * 24 * 3600.0)


def _subscriptions(client: Client, topics: Iterable[str]) -> Iterable[SubscriptionFigures]:
    for topic in topics:
        try:
            for info in client.subscriptions(topic):
                name = f"{info.subscriber} ({info.pattern})" if info.pattern else info.subscriber
                yield SubscriptionFigures(topic, name, info.lag, _oldest_s(client, info))
        except errors.TopicUnknown:
            continue


def _oldest_s(client: Client, info: SubscriptionInfo) -> float | None:
    if not info.lag:
        return None
    try:
        for message in client.read(info.topic, info.acked, stop=info.acked + 1):
            return max(0.0, time.time() - message.timestamp_ms / 1000)
    except (errors.RangeGone, errors.TopicUnknown):
        # It has expired, or was dropped.
        pass
    return None
