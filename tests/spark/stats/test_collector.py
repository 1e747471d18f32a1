"""Stats of real topics, counted by real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.spark.broker import Broker
from oncemq.spark.stats import StatsSelection, collect_stats
from oncemq.spark.stats.collector import _windows
from oncemq.spark.stats.latency import _lag_by_window
from oncemq.testing.broker_process import BrokerProcess


def test_figures_are_those_of_the_topics(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    for topic in ("eu.orders", "us.orders"):
        client.create_topic(topic, retain_ms=3_600_000)
    client.subscribe("eu.orders", "billing")
    with broker.connect(record=str(tmp_path)) as recorded:
        recorded.put_many("eu.orders", [b"x" * size for size in range(1, 101)])
        recorded.put_many("us.orders", [b"y" * 50] * 10, keys=[b"%d" % (number % 3) for number in range(10)])
        subscription = recorded.subscription("eu.orders", "billing", auto_ack=False)
        messages = subscription.get_many(100)
        assert len(messages) == 100
        subscription.ack(messages[39])
        subscription.close()
    stats = collect_stats(spark, Broker(url=broker.url), StatsSelection(pattern="*.orders"), records=str(tmp_path))
    eu, us = stats.topics
    assert (eu.topic, eu.messages, eu.bytes, eu.size_p50, eu.size_max, eu.keys) == ("eu.orders", 100, 5050, 50, 100, 0)
    assert (us.topic, us.messages, us.bytes, us.size_p99, us.keys) == ("us.orders", 10, 500, 50, 3)
    assert sum(window.messages for window in stats.windows) == 110
    (lag,) = stats.subscriptions
    assert (lag.topic, lag.subscriber, lag.lag) == ("eu.orders", "billing", 60)
    assert lag.oldest_s is not None
    counted = {(row.topic, row.what): row.messages for row in stats.latencies}
    assert counted == {("eu.orders", "put"): 100, ("us.orders", "put"): 10, ("eu.orders", "delivery"): 100}
    assert all(0 <= row.p50_ms <= row.p99_ms <= row.max_ms for row in stats.latencies)
    assert stats.lags[-1].lag == 60
    with pytest.raises(errors.SettingInvalid, match="longer windows"):
        collect_stats(spark, Broker(url=broker.url), StatsSelection(topics=("eu.orders", "us.orders")), window_s=1e-9)


def test_a_message_is_in_the_window_of_its_time(spark: SparkSession) -> None:
    """Also where a fraction of a second has no exact binary form."""
    times_ms = [1_700_000_000_000 + 100 * number for number in range(30)]
    rows = [("orders", time_ms, 1) for time_ms in times_ms]
    windows = _windows(spark.createDataFrame(rows, "topic string, at_ms bigint, size int"), 0.1)
    assert [(window.start_ms, window.messages) for window in windows] == [(time_ms, 1) for time_ms in times_ms]


def test_lag_over_time_is_what_is_stored_and_not_acked() -> None:
    ends, stands = {0: 10, 1000: 50, 4000: 60}, {1000: 20, 3000: 50}
    assert list(_lag_by_window(ends, stands)) == [(1000, 30), (3000, 0), (4000, 10)]
