"""The options of the source, as Spark's driver and tasks call it, against a real broker; without a JVM."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.spark.source.limit_options import BatchLimits
from oncemq.spark.source.planning import Admission
from oncemq.spark.source.ranges import Range
from oncemq.spark.source.source import BatchReader, StreamReader
from oncemq.testing.broker_process import BrokerProcess
from tests.spark.source.test_source import batch_reader, kept, numbered, rows_of, stream_reader, through_json, values_in

ALL = ReadAllAvailable()


def put_at_times(client: Client, topic: str) -> list[int]:
    """Put three messages, each at another millisecond. Returns these."""
    kept(client, topic)
    times: list[int] = []
    while len(times) < 3:
        while times and client.health().time_ms <= times[-1]:
            pass
        times.append(client.put(topic, str(len(times))).timestamp_ms)
    return times


def values_of(reader: BatchReader) -> list[bytes]:
    return values_in(rows_of(reader, reader.partitions()))


def next_batch(reader: StreamReader, start: dict[str, Any], limit: Any = ALL) -> tuple[dict[str, Any], list[bytes]]:
    end = through_json(reader.latestOffset(start, limit))
    return end, values_in(rows_of(reader, reader.partitions(start, end)))


# Times.


def test_times_bound_a_batch_read(broker: BrokerProcess, client: Client) -> None:
    first, second, third = put_at_times(client, "orders")
    assert values_of(batch_reader(broker, topic="orders", startingTimestamp=str(second))) == [b"1", b"2"]
    assert values_of(batch_reader(broker, topic="orders", endingTimestamp=str(second))) == [b"0"]
    assert values_of(batch_reader(broker, topic="orders", endingTimestamp=str(third + 1))) == [b"0", b"1", b"2"]
    moment = datetime.fromtimestamp(third / 1000, UTC).isoformat()
    assert values_of(batch_reader(broker, topic="orders", startingTimestamp=moment)) == [b"2"]
    by_topic = json.dumps({"orders": second})
    assert values_of(batch_reader(broker, topic="orders", startingOffsetsByTimestamp=by_topic)) == [b"1", b"2"]
    assert values_of(batch_reader(broker, topic="orders", endingOffsetsByTimestamp=by_topic)) == [b"0"]
    both = batch_reader(broker, topic="orders", startingTimestamp=str(first + 1), endingTimestamp=str(third))
    assert values_of(both) == [b"1"]


def test_a_time_for_all_topics_precedes_times_by_topic_and_these_precede_offsets(
    broker: BrokerProcess, client: Client
) -> None:
    _, second, third = put_at_times(client, "a")
    put_at_times(client, "b")
    options = {"startingOffsets": '{"a": 0, "b": 2}', "startingOffsetsByTimestamp": json.dumps({"a": second})}
    reader = batch_reader(broker, topics="a,b", **options)
    assert values_of(reader) == [b"1", b"2", b"2"], "a topic without a time starts at its offset"
    reader = batch_reader(broker, topic="a", startingTimestamp=str(third), startingOffsetsByTimestamp='{"a": 0}')
    assert values_of(reader) == [b"2"]


def test_a_start_after_the_last_message_is_an_error_or_the_end(broker: BrokerProcess, client: Client) -> None:
    later = str(put_at_times(client, "orders")[-1] + 1_000_000)
    with pytest.raises(errors.OffsetOutOfRange, match=r"no message from .*startingOffsetsByTimestampStrategy=latest"):
        batch_reader(broker, topic="orders", startingTimestamp=later).partitions()
    chosen = {"startingTimestamp": later, "startingOffsetsByTimestampStrategy": "latest"}
    assert values_of(batch_reader(broker, topic="orders", **chosen)) == []
    with pytest.raises(errors.OffsetOutOfRange):
        stream_reader(broker, topic="orders", startingTimestamp=later).initialOffset()
    reader = stream_reader(broker, topic="orders", **chosen)
    start = reader.initialOffset()
    client.put("orders", "new")
    assert next_batch(reader, start)[1] == [b"new"]


@pytest.mark.parametrize("selected", [{"topic": "orders"}, {"regex": "or.*"}])
def test_a_stream_starts_at_a_time_when_it_is_new(
    broker: BrokerProcess, client: Client, selected: dict[str, str]
) -> None:
    _, second, _ = put_at_times(client, "orders")
    reader = stream_reader(broker, startingTimestamp=str(second), **selected)
    start = through_json(reader.initialOffset())
    end, values = next_batch(reader, start)
    assert values == [b"1", b"2"]
    reader.commit(end)
    client.put("orders", "3")
    again = stream_reader(broker, startingTimestamp=str(second), **selected)
    assert next_batch(again, end)[1] == [b"3"], "a checkpoint continues where it is"


def test_offsets_are_understood_as_kafkas_source_writes_them(broker: BrokerProcess, client: Client) -> None:
    _, second, _ = put_at_times(client, "orders")
    assert values_of(batch_reader(broker, topic="orders", startingOffsets='{"orders": {"0": 2}}')) == [b"2"]
    assert values_of(batch_reader(broker, topic="orders", startingOffsets='{"orders": {"0": -2}}')) == [
        b"0",
        b"1",
        b"2",
    ]
    assert values_of(batch_reader(broker, topic="orders", startingOffsets='{"orders": {"0": -1}}')) == []
    times = json.dumps({"orders": {"0": second}})
    assert values_of(batch_reader(broker, topic="orders", startingOffsetsByTimestamp=times)) == [b"1", b"2"]


# Which topics.


def test_assign_reads_the_topics_that_it_names(broker: BrokerProcess, client: Client) -> None:
    for topic in ("a", "b", "c"):
        kept(client, topic)
        client.put(topic, topic)
    assert values_of(batch_reader(broker, assign='{"a": [0], "c": [0]}')) == [b"a", b"c"]
    reader = stream_reader(broker, assign='{"b": [0]}', startingOffsets="earliest")
    assert next_batch(reader, reader.initialOffset())[1] == [b"b"]


def test_a_regular_expression_matches_whole_names(broker: BrokerProcess, client: Client) -> None:
    for topic in ("eu.orders", "us.orders", "us.orders.old", "bills"):
        kept(client, topic)
        client.put(topic, topic)
    assert values_of(batch_reader(broker, regex=r"(eu|us)\.orders")) == [b"eu.orders", b"us.orders"]


def test_topics_that_match_join_a_stream_from_their_first_message(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders-1")
    client.put("orders-1", "before")
    reader = stream_reader(broker, regex="orders-[0-9]+")
    start = through_json(reader.initialOffset())
    client.put("orders-1", "a")
    for topic in ("orders-2", "orders-x"):
        kept(client, topic)
        client.put(topic, topic)
    end, values = next_batch(reader, start)
    assert sorted(values) == [b"a", b"orders-2"]
    # The driver starts again: a replay is the same, and another topic joins.
    again = stream_reader(broker, regex="orders-[0-9]+")
    assert sorted(values_in(rows_of(again, again.partitions(start, end)))) == [b"a", b"orders-2"]
    kept(client, "orders-3")
    client.put("orders-3", "c")
    client.put("orders-2", "b")
    end, values = next_batch(again, end)
    assert sorted(values) == [b"b", b"c"]
    again.commit(end)
    found = {info.topic: info.acked for topic in end["topics"] for info in client.subscriptions(topic)}
    assert found == {"orders-1": 2, "orders-2": 2, "orders-3": 1}


def test_a_deleted_topic_of_a_regular_expression_is_an_error(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders-1")
    client.put("orders-1", "a")
    reader = stream_reader(broker, regex="orders-[0-9]+", startingOffsets="earliest")
    end, _ = next_batch(reader, through_json(reader.initialOffset()))
    client.delete_topic("orders-1")
    with pytest.raises(errors.TopicGone, match="'orders-1' was deleted"):
        stream_reader(broker, regex="orders-[0-9]+").latestOffset(end, ALL)


# How much a micro-batch reads.


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_micro_batch_waits_for_enough_messages_or_for_the_delay(client: Client) -> None:
    clock = Clock()
    admission = Admission(BatchLimits(rows_min=10, delay_max_ms=60_000), clock)
    limit = admission.default_limit()
    assert limit == ReadMinRows(10)

    def admitted(count: int, *, may_wait: bool = True, limit: Any = limit) -> int:
        return admission.admit(client, [Range("orders", 1, 0, count)], limit, may_wait=may_wait)["orders"]

    assert admitted(3) == 3, "the first one does not wait"
    assert admitted(9) == 0
    assert admitted(10) == 10
    clock.now_s += 59
    assert admitted(9) == 0
    assert admitted(9, may_wait=False) == 9, "a run that ends with what is there does not wait"
    clock.now_s += 59
    assert admitted(8) == 0
    clock.now_s += 2
    assert admitted(8) == 8
    assert admitted(8, limit=ALL) == 8, "the trigger `once` reads everything"


def test_a_query_that_waits_for_messages_plans_nothing(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    reader = stream_reader(broker, topic="orders", minOffsetsPerTrigger="5")
    start = through_json(reader.initialOffset())
    client.put("orders", "0")
    end, values = next_batch(reader, start, reader.getDefaultReadLimit())
    assert values == [b"0"]
    client.put_many("orders", numbered(1, 4))
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    client.put_many("orders", numbered(4, 7))
    assert next_batch(reader, end, reader.getDefaultReadLimit())[1] == numbered(1, 7)


def test_a_micro_batch_ends_with_the_batch_that_reaches_its_size(broker: BrokerProcess, client: Client) -> None:
    for topic in ("large", "small"):
        kept(client, topic)
    for _ in range(10):
        client.put_many("large", [b"x" * 1_000] * 10)
    client.put_many("small", [b"x" * 1_000] * 10)
    reader = stream_reader(broker, topics="large,small", startingOffsets="earliest", maxBytesPerTrigger="40k")
    assert reader.getDefaultReadLimit() == ReadMaxBytes(40 * 1024)
    start = through_json(reader.initialOffset())
    reads: list[int] = []
    while (end := through_json(reader.latestOffset(start, reader.getDefaultReadLimit()))) != start:
        reads.append(len(rows_of(reader, reader.partitions(start, end))))
        start = end
    assert sum(reads) == 110
    assert reads[0] == 50, "four batches of the large topic, and one of the small one"
    assert len(reads) == 3
    limited = stream_reader(broker, topics="large", maxBytesPerTrigger="40k", maxOffsetsPerTrigger="7")
    assert limited.getDefaultReadLimit() == ReadMaxRows(7)


# How many tasks read.


def test_tasks_are_planned_by_bytes_where_messages_are_large(broker: BrokerProcess, client: Client) -> None:
    kept(client, "images")
    for _ in range(40):
        client.put("images", b"x" * 500_000)
    assert len(batch_reader(broker, topic="images", partitions="2").partitions()) == 2
    assert len(batch_reader(broker, topic="images").partitions()) >= 2, "20 MB are too much for one task"
    reader = batch_reader(broker, topic="images", maxBytesPerPartition="4m")
    partitions = reader.partitions()
    assert len(partitions) == 5
    assert {partition.wanted.count for partition in partitions} == {8}  # type: ignore[attr-defined]
    assert len(rows_of(reader, partitions)) == 40


def test_a_minimum_of_tasks_and_a_maximum_of_rows_per_task(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    client.put_many("orders", numbered(0, 100))
    assert len(batch_reader(broker, topic="orders").partitions()) == 1, "so few are not worth a second task"
    reader = batch_reader(broker, topic="orders", minPartitions="5")
    assert len(reader.partitions()) == 5
    assert values_of(reader) == numbered(0, 100)
    reader = batch_reader(broker, topic="orders", maxRecordsPerPartition="30")
    assert len(reader.partitions()) == 4
    assert values_of(reader) == numbered(0, 100)


# Progress.


def test_the_progress_of_a_query_shows_what_waits(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    client.put_many("orders", numbered(0, 10))
    reader = stream_reader(broker, topic="orders", startingOffsets="earliest", maxOffsetsPerTrigger="4")
    start = through_json(reader.initialOffset())
    reader.latestOffset(start, ReadMaxRows(4))
    receipt = client.put("orders", b"x" * 1_000)
    report = through_json(reader.reportLatestOffset() or {})
    assert report["lag"] == 7
    assert 1_000 < report["lagBytes"] < 1_400
    assert datetime.fromisoformat(report["oldestUnread"]).timestamp() * 1000 <= receipt.timestamp_ms
    assert report["source"] == "topic orders, subscription spark"
    end = reader.latestOffset(start, ALL)
    report = reader.reportLatestOffset() or {}
    assert (report["lag"], report["lagBytes"]) == (0, 0)
    assert "oldestUnread" not in report
    assert end["topics"] == report["topics"]
