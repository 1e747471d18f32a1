"""Exactly once from topic to topic through a real Spark, whatever dies on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from oncemq.client.sync import Client
from oncemq.testing.broker_process import BrokerProcess
from tests.spark.faults import faulty
from tests.spark.faults.driver_processes import Driver
from tests.spark.faults.streams import (
    COUNTS,
    SUBSCRIPTION,
    Stream,
    counted,
    make_topics,
    projected,
    put_numbers,
    rows_in,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def stream(spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path) -> Stream:
    """300 numbers: batches of 120, 120 and 60, each in three tasks."""
    faulty.register(spark)
    made = Stream(folder=str(tmp_path), url=broker.url, source="in", target="out")
    make_topics(client, made)
    put_numbers(client, "in", 0, 300)
    return made


def test_a_stream_has_each_message_once_and_in_order_and_goes_on_from_its_checkpoint(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    stream = Stream(folder=str(tmp_path), url=broker.url, source="in", target="out", rows_max=40_000, format="oncemq")
    make_topics(client, stream)
    put_numbers(client, "in", 0, 70_000)
    stream.run(spark)
    assert stream.done() == [0, 1]
    assert rows_in(client, "out") == projected(0, 70_000)
    # What is done is acked when the next batch is planned, and kept until then.
    assert client.subscriptions("in")[0].acked == 40_000
    put_numbers(client, "in", 70_000, 75_000)
    stream.run(spark)
    assert rows_in(client, "out") == projected(0, 75_000)
    assert client.subscriptions("in")[0].acked == 70_000


def test_a_batch_whose_task_or_commit_failed_is_published_once(
    spark: SparkSession, client: Client, stream: Stream
) -> None:
    stream.faults.plant(faulty.STAGED, faulty.RAISE, batch=1)
    with pytest.raises(StreamingQueryException, match="planted: staged"):
        stream.run(spark)
    # This session has one attempt for a task: the batch failed.
    assert (stream.planned(), stream.done()) == ([0, 1], [0])
    assert rows_in(client, "out") == projected(0, 120)
    stream.faults.plant(faulty.AFTER_COMMIT, faulty.RAISE, batch=1)
    with pytest.raises(StreamingQueryException, match="planted: after-commit"):
        stream.run(spark)
    # Published, and Spark believes that it is not.
    assert (stream.planned(), stream.done()) == ([0, 1], [0])
    assert rows_in(client, "out") == projected(0, 240)
    stream.run(spark)
    assert rows_in(client, "out") == projected(0, 300)


def test_a_batch_whose_entry_in_the_commit_log_is_lost_is_not_published_again(
    spark: SparkSession, client: Client, stream: Stream
) -> None:
    stream.run(spark)
    stream.forget_last_batch()
    assert stream.done() == [0, 1]
    put_numbers(client, "in", 300, 330)
    stream.run(spark)
    assert stream.done() == [0, 1, 2, 3]
    assert rows_in(client, "out") == projected(0, 330)


def test_a_replayed_batch_counts_nothing_twice_in_a_query_with_state(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    faulty.register(spark)
    stream = Stream(folder=str(tmp_path), url=broker.url, source="in", target="out", sql=COUNTS, rows_max=100)
    make_topics(client, stream)
    put_numbers(client, "in", 0, 150)
    stream.run(spark)
    stream.forget_last_batch()
    put_numbers(client, "in", 150, 173)
    stream.run(spark)
    values = [value for _, value in rows_in(client, "out")]
    assert [sorted(values[at : at + 5]) for at in (0, 5, 10)] == [counted(100), counted(150), counted(173)]
    assert len(values) == 15


def test_a_batch_function_that_writes_twice_doubles_nothing_in_either_target(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.subscribe("in", SUBSCRIPTION, "earliest")
    for topic in ("left", "right"):
        client.create_topic(topic, retain_ms=3_600_000)
    put_numbers(client, "in", 0, 100)
    failures = [1]

    def run() -> None:
        messages = spark.readStream.format("oncemq").option("url", broker.url).option("topic", "in")
        messages = messages.option("subscription", SUBSCRIPTION).option("startingOffsets", "earliest")
        batches = messages.option("maxOffsetsPerTrigger", "50").load().writeStream.trigger(availableNow=True)
        query = batches.foreachBatch(both_of(broker.url, failures)).option("checkpointLocation", str(tmp_path))
        query.start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="between the two"):
        run()
    run()
    expected = [b"%d" % number for number in range(100)]
    assert [[value for _, value in rows_in(client, topic)] for topic in ("left", "right")] == [expected, expected]
    (tmp_path / "commits" / "1").unlink()
    (tmp_path / "commits" / ".1.crc").unlink(missing_ok=True)
    run()
    assert (tmp_path / "commits" / "1").exists()
    assert [[value for _, value in rows_in(client, topic)] for topic in ("left", "right")] == [expected, expected]


def both_of(url: str, failures: list[int]) -> Callable[[DataFrame, int], None]:
    """Writes to `left` and to `right`; fails in between for each batch that is among the failures, once."""

    def write(batch: DataFrame, batch_id: int) -> None:
        # Kept in the checkpoint, as the batch's number is: a new checkpoint counts from 0 again.
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        for topic in ("left", "right"):
            if topic == "right" and batch_id in failures:
                failures.remove(batch_id)
                raise RuntimeError("between the two")
            save(batch, topic, query_id, batch_id)
        if batch_id == 0:
            # Other rows under the same id and number would be lost.
            with pytest.raises(PySparkException, match="BatchChanged"):
                save(batch.limit(1), "left", query_id, batch_id)

    def save(rows: DataFrame, topic: str, query_id: str, batch_id: int) -> None:
        values = rows.select("value").write.format("oncemq").mode("append")
        values = values.option("url", url).option("topic", topic)
        values.option("writeId", query_id).option("writeNumber", batch_id).save()

    return write


@pytest.mark.spark
def test_a_driver_that_is_killed_around_the_broker_s_commit_publishes_each_batch_once(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    faulty.register(spark)
    before, after = (
        Stream(folder=str(tmp_path / name), url=broker.url, source=f"in.{name}", target=f"out.{name}")
        for name in ("before", "after")
    )
    make_topics(client, before, after)
    for stream in (before, after):
        put_numbers(client, stream.source, 0, 300)
    # A worker dies with a task whose rows are all staged: the task is tried again, in the same life of the driver.
    before.faults.plant(faulty.STAGED, faulty.DIE)
    before.faults.plant(faulty.BEFORE_COMMIT, faulty.HANG, batch=1)
    after.faults.plant(faulty.AFTER_COMMIT, faulty.HANG, batch=1)
    with Driver(tmp_path, [before, after]) as driver:
        driver.wait_until(lambda: before.faults.is_met(faulty.BEFORE_COMMIT), "before the broker's commit")
        driver.wait_until(lambda: after.faults.is_met(faulty.AFTER_COMMIT), "after the broker's commit")
    assert before.faults.is_met(faulty.STAGED)
    assert rows_in(client, before.target) == projected(0, 120)
    assert rows_in(client, after.target) == projected(0, 240)
    for stream in (before, after):
        assert (stream.planned(), stream.done()) == ([0, 1], [0])
    # The checkpoints are all that is left of it. This session's driver goes on with them.
    for stream in (before, after):
        stream.run(spark)
        assert rows_in(client, stream.target) == projected(0, 300)
