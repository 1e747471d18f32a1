"""The source as Spark's driver and tasks call it, against a real broker; without a JVM."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.spark.options import source_options
from oncemq.spark.source.source import BatchReader, StreamReader
from oncemq.testing.broker_process import BrokerProcess

Row = tuple[str, int, bytes]


def batch_reader(broker: BrokerProcess, **options: str) -> BatchReader:
    return BatchReader(source_options({"url": broker.url, "timeout": "5", **options}, is_stream=False))


def stream_reader(broker: BrokerProcess, **options: str) -> StreamReader:
    given = {"url": broker.url, "timeout": "5", "subscription": "spark", **options}
    return StreamReader(source_options(given, is_stream=True))


def rows_of(reader: BatchReader | StreamReader, partitions: Any) -> list[Row]:
    """As Spark's tasks get them: out of pickled copies."""
    rows: list[Row] = []
    for partition in pickle.loads(pickle.dumps(partitions)):
        for batch in pickle.loads(pickle.dumps(reader)).read(partition):
            columns = (batch.column(name).to_pylist() for name in ("topic", "offset", "value"))
            rows += zip(*columns, strict=True)
    return rows


def values_in(rows: list[Row]) -> list[bytes]:
    return [value for _, _, value in rows]


def numbered(first: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, stop)]


def through_json(offsets: dict[str, Any]) -> dict[str, Any]:
    """As Spark keeps it."""
    kept: dict[str, Any] = json.loads(json.dumps(offsets))
    return kept


def kept(client: Client, topic: str) -> None:
    client.create_topic(topic, retain_ms=3_600_000)


# Batch reads.


def test_a_topic_is_read_in_parts_that_together_are_all_of_it(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    client.put_many("orders", numbered(0, 50_000))
    reader = batch_reader(broker, topic="orders", partitions="4")
    partitions = reader.partitions()
    assert len(partitions) == 4
    rows = rows_of(reader, partitions)
    assert rows == [("orders", number, b"%d" % number) for number in range(50_000)]


def test_offsets_and_times_bound_a_batch_read(broker: BrokerProcess, client: Client) -> None:
    for topic in ("a", "b"):
        kept(client, topic)
        client.put_many(topic, numbered(0, 10))
    receipt = client.put("b", b"later")
    moment = datetime.fromtimestamp(receipt.timestamp_ms / 1000, UTC).isoformat()
    start = json.dumps({"a": 3, "b": moment})
    reader = batch_reader(broker, topics="a,b", startingOffsets=start, endingOffsets='{"a": 5}')
    rows = rows_of(reader, reader.partitions())
    assert [row for row in rows if row[0] == "a"] == [("a", 3, b"3"), ("a", 4, b"4")]
    assert rows[-1] == ("b", 10, b"later")


def test_a_pattern_reads_every_topic_that_matches(broker: BrokerProcess, client: Client) -> None:
    for topic in ("eu.orders", "us.orders", "us.bills"):
        kept(client, topic)
        client.put(topic, topic)
    reader = batch_reader(broker, pattern="*.orders")
    assert {topic for topic, _, _ in rows_of(reader, reader.partitions())} == {"eu.orders", "us.orders"}


def test_a_range_that_is_gone_is_an_error_that_says_so(broker: BrokerProcess, client: Client) -> None:
    subscription = client.subscribe("orders", "other")
    client.put_many("orders", numbered(0, 10))
    reader = batch_reader(broker, topic="orders")
    partitions = reader.partitions()
    assert len(subscription.get_many()) == 10
    subscription.ack()
    subscription.close()
    client.put("orders", "10")
    with pytest.raises(errors.RangeGone, match=r"messages 0 to 10 of 'orders'.*failOnDataLoss"):
        rows_of(reader, partitions)
    with pytest.raises(errors.RangeGone, match="offset 3"):
        batch_reader(broker, topic="orders", startingOffsets='{"orders": 3}').partitions()


def test_without_fail_on_data_loss_what_is_left_is_read(broker: BrokerProcess, client: Client) -> None:
    subscription = client.subscribe("orders", "other")
    client.put_many("orders", numbered(0, 5))
    client.put_many("orders", numbered(5, 10))
    reader = batch_reader(broker, topic="orders", failOnDataLoss="false")
    partitions = reader.partitions()
    assert len(subscription.get_many(5)) == 5
    subscription.ack()
    subscription.close()
    assert values_in(rows_of(reader, partitions)) == numbered(5, 10)


def test_a_topic_without_messages_has_no_rows(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    reader = batch_reader(broker, topic="orders")
    # Spark makes a partition of its own where there is none.
    assert rows_of(reader, [*reader.partitions(), InputPartition(None)]) == []


def test_a_topic_that_is_not_there_is_an_error(broker: BrokerProcess) -> None:
    with pytest.raises(errors.TopicUnknown, match="nowhere"):
        batch_reader(broker, topic="nowhere").partitions()


def test_a_broker_that_is_away_is_an_error(broker: BrokerProcess) -> None:
    broker.stop()
    with pytest.raises(errors.BrokerAway):
        batch_reader(broker, topic="orders", timeout="1").partitions()
    broker.start()


# Streams.


def test_a_stream_starts_where_its_subscription_was_made(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    client.put_many("orders", numbered(0, 5))
    reader = stream_reader(broker, topic="orders")
    start = reader.initialOffset()
    client.put_many("orders", numbered(5, 10))
    # Asked again, after a crash before the first batch was done: the same.
    assert stream_reader(broker, topic="orders").initialOffset() == start
    reader = stream_reader(broker, topic="orders")
    end = reader.latestOffset(through_json(start), ReadAllAvailable())
    assert values_in(rows_of(reader, reader.partitions(start, end))) == numbered(5, 10)


def test_a_micro_batch_takes_no_more_than_it_may(broker: BrokerProcess, client: Client) -> None:
    for topic, count in (("busy", 90), ("quiet", 10)):
        kept(client, topic)
        client.put_many(topic, numbered(0, count))
    reader = stream_reader(broker, topics="busy,quiet", startingOffsets="earliest", maxOffsetsPerTrigger="20")
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    start, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(start, limit)) != start:
        rows = rows_of(reader, reader.partitions(start, end))
        assert len(rows) <= 20
        assert {topic for topic, _, _ in rows} == {"busy", "quiet"}
        seen += rows
        start = end
    assert sorted(seen) == sorted(
        (topic, number, b"%d" % number) for topic, count in (("busy", 90), ("quiet", 10)) for number in range(count)
    )


def test_what_the_checkpoint_needs_is_not_collected_until_it_is_committed(
    broker: BrokerProcess, client: Client
) -> None:
    client.create_topic("orders")
    reader = stream_reader(broker, topic="orders")
    start = reader.initialOffset()
    client.put_many("orders", numbered(0, 10))
    end = reader.latestOffset(start, ReadAllAvailable())
    # The driver dies here; its successor replays the same range without asking for an end.
    successor = stream_reader(broker, topic="orders")
    assert values_in(rows_of(successor, successor.partitions(start, end))) == numbered(0, 10)
    assert client.subscriptions("orders")[0].acked == 0
    successor.commit(end)
    assert client.subscriptions("orders")[0].acked == 10
    assert client.topics()[0].first_offset == 10


def test_the_former_driver_is_fenced_by_its_successor(broker: BrokerProcess, client: Client) -> None:
    client.create_topic("orders")
    former = stream_reader(broker, topic="orders")
    start = former.initialOffset()
    client.put("orders", "one")
    end = former.latestOffset(start, ReadAllAvailable())
    stream_reader(broker, topic="orders").latestOffset(start, ReadAllAvailable())
    with pytest.raises(errors.SubscriptionFenced, match="another query or consumer uses subscription 'spark'"):
        former.commit(end)


def test_a_seek_by_an_operator_does_not_stop_a_stream(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    reader = stream_reader(broker, topic="orders")
    start = reader.initialOffset()
    client.put_many("orders", numbered(0, 10))
    end = reader.latestOffset(start, ReadAllAvailable())
    client.seek("orders", "spark", "earliest")
    reader.commit(end)
    assert client.subscriptions("orders")[0].acked == 10


def test_a_topic_that_was_made_again_is_an_error_and_never_other_data(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    reader = stream_reader(broker, topic="orders")
    start = reader.initialOffset()
    client.put_many("orders", numbered(0, 10))
    end = reader.latestOffset(start, ReadAllAvailable())
    partitions = reader.partitions(start, end)
    client.delete_topic("orders")
    kept(client, "orders")
    client.put_many("orders", [b"other"] * 20)
    with pytest.raises(errors.TopicGone):
        rows_of(reader, partitions)
    successor = stream_reader(broker, topic="orders")
    with pytest.raises(errors.TopicGone, match="deleted and created again"):
        successor.partitions(start, end)
    with pytest.raises(errors.TopicGone, match="new checkpoint"):
        stream_reader(broker, topic="orders").latestOffset(end, ReadAllAvailable())


def test_a_checkpoint_of_another_broker_is_an_error(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    reader = stream_reader(broker, topic="orders")
    start = reader.initialOffset() | {"broker": "another"}
    with pytest.raises(errors.TopicGone, match="broker another"):
        stream_reader(broker, topic="orders").latestOffset(start, ReadAllAvailable())


def test_a_checkpoint_ahead_of_its_topic_is_an_error(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    reader = stream_reader(broker, topic="orders")
    start = reader.initialOffset()
    start["topics"]["orders"][1] = 1000
    with pytest.raises(errors.OffsetOutOfRange, match="older copy"):
        reader.latestOffset(start, ReadAllAvailable())


def test_a_subscription_that_was_ended_is_made_again_where_the_checkpoint_stands(
    broker: BrokerProcess, client: Client
) -> None:
    kept(client, "orders")
    reader = stream_reader(broker, topic="orders", startingOffsets="earliest")
    client.put_many("orders", numbered(0, 4))
    middle = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    client.put_many("orders", numbered(4, 9))
    client.unsubscribe("orders", "spark")
    successor = stream_reader(broker, topic="orders", startingOffsets="earliest")
    end = successor.latestOffset(middle, ReadAllAvailable())
    assert client.subscriptions("orders")[0].acked == 4
    assert values_in(rows_of(successor, successor.partitions(middle, end))) == numbered(4, 9)


def test_available_now_ends_where_the_topics_ended_when_it_began(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    client.put_many("orders", numbered(0, 10))
    reader = stream_reader(broker, topic="orders", startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    client.put_many("orders", numbered(10, 20))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert values_in(rows_of(reader, reader.partitions(start, end))) == numbered(0, 10)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["lag"] == 10


def test_the_first_run_on_a_topic_that_nobody_made_yet_makes_it(broker: BrokerProcess, client: Client) -> None:
    reader = stream_reader(broker, topic="fresh")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    client.put("fresh", "one")
    successor = stream_reader(broker, topic="fresh")
    end = successor.latestOffset(start, ReadAllAvailable())
    assert values_in(rows_of(successor, successor.partitions(start, end))) == [b"one"]


def test_a_stream_by_pattern_takes_in_topics_that_are_made_later(broker: BrokerProcess, client: Client) -> None:
    kept(client, "eu.orders")
    client.put("eu.orders", "before")
    reader = stream_reader(broker, pattern="*.orders")
    start = reader.initialOffset()
    client.put("eu.orders", "one")
    kept(client, "us.orders")
    client.put_many("us.orders", ["two", "three"])
    end = reader.latestOffset(start, ReadAllAvailable())
    successor = stream_reader(broker, pattern="*.orders")
    rows = rows_of(successor, successor.partitions(start, end))
    assert sorted(rows) == [("eu.orders", 1, b"one"), ("us.orders", 0, b"two"), ("us.orders", 1, b"three")]
    successor.commit(end)
    assert [entry.lag for entry in client.patterns()] == [0]


def test_a_topic_that_was_deleted_under_a_pattern_is_an_error_unless_loss_is_accepted(
    broker: BrokerProcess, client: Client
) -> None:
    for topic in ("eu.orders", "us.orders"):
        kept(client, topic)
    start = stream_reader(broker, pattern="*.orders").initialOffset()
    client.delete_topic("us.orders")
    client.put("eu.orders", "one")
    with pytest.raises(errors.TopicGone, match=r"'us\.orders' was deleted"):
        stream_reader(broker, pattern="*.orders").latestOffset(start, ReadAllAvailable())
    reader = stream_reader(broker, pattern="*.orders", failOnDataLoss="false")
    end = reader.latestOffset(start, ReadAllAvailable())
    assert values_in(rows_of(reader, reader.partitions(start, end))) == [b"one"]


@pytest.mark.parametrize("which", [{"topics": "eu.orders,us.orders"}, {"pattern": "*.orders"}])
def test_where_loss_is_accepted_a_deleted_topic_stops_neither_a_stream_nor_its_replay(
    broker: BrokerProcess, client: Client, which: dict[str, str]
) -> None:
    options = {**which, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    reader = stream_reader(broker, **options)
    for topic in ("eu.orders", "us.orders"):
        kept(client, topic)
        client.put_many(topic, numbered(0, 5))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    client.delete_topic("us.orders")
    for driver in (reader, stream_reader(broker, **options)):
        assert rows_of(driver, driver.partitions(start, end)) == [("eu.orders", n, b"%d" % n) for n in range(5)]
    driver.commit(end)
    assert driver.latestOffset(end, ReadAllAvailable()) == end
    assert [topic.name for topic in client.topics()] == ["eu.orders"]


def test_a_shared_subscription_can_t_carry_a_stream(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    client.subscribe_shared("orders", "spark")
    with pytest.raises(errors.OnceMQError, match="shared"):
        stream_reader(broker, topic="orders").initialOffset()


def test_reading_goes_on_when_the_broker_comes_back(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    client.put_many("orders", numbered(0, 1000))
    reader = stream_reader(broker, topic="orders", startingOffsets="earliest", timeout="30")
    start = reader.initialOffset()
    broker.kill()
    broker.restart()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert values_in(rows_of(reader, reader.partitions(start, end))) == numbered(0, 1000)


def test_a_message_that_is_due_later_comes_when_it_is_due(broker: BrokerProcess, client: Client) -> None:
    kept(client, "orders")
    reader = stream_reader(broker, topic="orders")
    start = reader.initialOffset()
    client.put("orders", "late", delay_s=timedelta(hours=1).total_seconds())
    client.put("orders", "now")
    end = reader.latestOffset(start, ReadAllAvailable())
    assert values_in(rows_of(reader, reader.partitions(start, end))) == [b"now"]


# A replay reads what the first try read, whatever happened to the subscription since.


def planned_batch(broker: BrokerProcess, client: Client, **options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first batch, as it stands in the offset log: messages 2 to 10. Spark keeps its end alone."""
    kept(client, "orders")
    client.put_many("orders", numbered(0, 2))
    reader = stream_reader(broker, topic="orders", **options)
    start = reader.initialOffset()
    client.put_many("orders", numbered(2, 10))
    return start, through_json(reader.latestOffset(start, ReadAllAvailable()))


def replayed(broker: BrokerProcess, end: dict[str, Any], **options: str) -> list[bytes]:
    successor = stream_reader(broker, topic="orders", **options)
    start = successor.initialOffset()
    return values_in(rows_of(successor, successor.partitions(start, end)))


def test_the_first_batch_is_replayed_as_it_was_though_its_subscription_was_moved_or_ended(
    broker: BrokerProcess, client: Client
) -> None:
    _, end = planned_batch(broker, client)
    client.seek("orders", "spark", 8)
    assert replayed(broker, end) == numbered(2, 10)
    client.unsubscribe("orders", "spark")
    assert replayed(broker, end) == numbered(2, 10)


def test_a_batch_in_which_a_topic_joined_is_replayed_as_it_was(broker: BrokerProcess, client: Client) -> None:
    reader = stream_reader(broker, pattern="*.orders", startingOffsets="earliest")
    kept(client, "eu.orders")
    client.put_many("eu.orders", numbered(0, 3))
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    kept(client, "us.orders")
    # It has nothing yet, and is no part of the stream.
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    client.put_many("us.orders", numbered(0, 5))
    end = through_json(reader.latestOffset(start, ReadAllAvailable()))
    client.seek("*.orders", "spark", "new")
    successor = stream_reader(broker, pattern="*.orders", startingOffsets="earliest")
    assert rows_of(successor, successor.partitions(start, end)) == [("us.orders", n, b"%d" % n) for n in range(5)]
    # A batch without new messages, which Spark runs for its state, reads nothing again.
    assert list(successor.partitions(end, end)) == []
    client.put("us.orders", "5")
    later = successor.latestOffset(end, ReadAllAvailable())
    assert values_in(rows_of(successor, successor.partitions(end, later))) == [b"5"]


def test_messages_that_go_while_they_are_read_are_skipped_where_loss_is_accepted(
    broker: BrokerProcess, client: Client
) -> None:
    subscription = client.subscribe("orders", "other")
    for _ in range(4):
        client.put_many("orders", [b"x" * 500_000] * 10)
    reader = batch_reader(broker, topic="orders", failOnDataLoss="false", partitions="1", columns="offset")
    (partition,) = reader.partitions()
    offsets: list[int] = []
    for batch in reader.read(partition):
        offsets += batch.column("offset").to_pylist()
        if len(offsets) == 10:
            assert len(subscription.get_many(35)) == 35
            subscription.ack()
            subscription.close()
    assert offsets[:10] == list(range(10))
    assert offsets[-1] == 39
    assert offsets == sorted(set(offsets))


def test_a_topic_that_was_made_again_is_read_from_its_beginning_where_loss_is_accepted(
    broker: BrokerProcess, client: Client
) -> None:
    options = {"topics": "orders,bills", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    for topic in ("orders", "bills"):
        kept(client, topic)
        client.put_many(topic, numbered(0, 10))
    reader = stream_reader(broker, **options)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    client.delete_topic("orders")
    kept(client, "orders")
    client.put_many("orders", [b"new"] * 3)
    for driver in (reader, stream_reader(broker, **options)):
        later = through_json(driver.latestOffset(end, ReadAllAvailable()))
        assert rows_of(driver, driver.partitions(end, later)) == [("orders", n, b"new") for n in range(3)]


def test_a_run_ends_though_its_topics_are_deleted_and_made_again_meanwhile(
    broker: BrokerProcess, client: Client
) -> None:
    options = {"topics": "orders,bills", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    for topic in ("orders", "bills"):
        kept(client, topic)
        client.put_many(topic, numbered(0, 10))
    reader = stream_reader(broker, **options)
    reader.prepareForTriggerAvailableNow()
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    for topic in ("orders", "bills"):
        client.delete_topic(topic)
    kept(client, "orders")
    client.put("orders", "new")
    # What is new belongs to the next run.
    assert reader.latestOffset(start, ReadMaxRows(4)) == start
    later = stream_reader(broker, **options)
    end = later.latestOffset(start, ReadAllAvailable())
    assert rows_of(later, later.partitions(start, end)) == [("orders", 0, b"new")]


def test_a_query_may_read_fewer_topics_than_its_checkpoint_knows(broker: BrokerProcess, client: Client) -> None:
    for topic in ("orders", "bills"):
        kept(client, topic)
        client.put_many(topic, numbered(0, 3))
    reader = stream_reader(broker, topics="orders,bills", startingOffsets="earliest")
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    client.put_many("orders", numbered(3, 5))
    client.put_many("bills", numbered(3, 5))
    fewer = stream_reader(broker, topic="orders")
    end = fewer.latestOffset(start, ReadAllAvailable())
    assert rows_of(fewer, fewer.partitions(start, end)) == [("orders", 3, b"3"), ("orders", 4, b"4")]


def test_a_subscription_that_exists_starts_where_it_stands_whatever_offset_is_named(
    broker: BrokerProcess, client: Client
) -> None:
    subscription = client.subscribe("orders", "spark")
    client.put_many("orders", numbered(0, 4))
    assert len(subscription.get_many()) == 4
    subscription.ack()
    subscription.close()
    client.put("orders", "4")
    reader = stream_reader(broker, topic="orders", startingOffsets='{"orders": 0}')
    assert reader.initialOffset()["topics"]["orders"][1] == 4
