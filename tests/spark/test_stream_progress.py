"""What Spark itself does with the source's options, limits and progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from oncemq.client.sync import Client
from oncemq.testing.broker_process import BrokerProcess


def stream(spark: SparkSession, broker: BrokerProcess, **options: Any) -> DataFrame:
    reader = spark.readStream.format("oncemq").options(url=broker.url, subscription="s", columns="value")
    return reader.options(startingOffsets="earliest", **options).load()


def start(rows: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(**trigger).start()


def test_a_query_reports_what_waits_and_keeps_to_its_limits(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    for topic in ("orders-1", "orders-2"):
        client.create_topic(topic, retain_ms=3_600_000)
        for _ in range(4):
            client.put_many(topic, [b"x" * 1_000] * 10)
    query = start(stream(spark, broker, regex="orders-.", maxBytesPerTrigger=40_000), tmp_path, availableNow=True)
    query.awaitTermination(60)
    batches = [json.loads(each.json) for each in query.recentProgress if each.numInputRows]
    assert [each["numInputRows"] for each in batches] == [40, 40]
    first, last = (each["sources"][0]["latestOffset"] for each in batches)
    assert first["source"] == "regex orders-., subscription s"
    assert first["lag"] == 40
    assert 40_000 < first["lagBytes"] < 50_000
    assert "oldestUnread" in first
    assert (last["lag"], last["lagBytes"]) == (0, 0)


def test_a_mistake_in_an_option_reaches_the_user(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(PySparkException, match="did you mean 'startingOffsets'"):
        spark.read.format("oncemq").options(url=broker.url, topic="orders", startOffsets="earliest").load()
    with pytest.raises(PySparkException, match="topics have no path"):
        spark.read.format("oncemq").option("url", broker.url).load("orders")
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql("CREATE TABLE orders_table USING oncemq OPTIONS (topic 'orders')")
    with pytest.raises(PySparkException, match="did you mean 'topic'"):
        spark.range(1).selectExpr("'a' value").write.format("oncemq").mode("append").option("topik", "a").save()


def test_real_time_mode_refuses_the_source_as_documented(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_topic("orders", retain_ms=3_600_000)
    rows = stream(spark, broker, topic="orders")
    writer = rows.writeStream.format("console").option("checkpointLocation", str(tmp_path / "checkpoint"))
    real_time: dict[str, Any] = {"realTime": "5 seconds"}
    query = writer.outputMode("update").trigger(**real_time).start()
    with pytest.raises(PySparkException, match=r"STREAMING_REAL_TIME_MODE\.INPUT_STREAM_NOT_SUPPORTED"):
        query.awaitTermination(60)
