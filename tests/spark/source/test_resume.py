"""A checkpoint that has lost entries: the source repeats the last micro-batch as it was, or refuses to resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.spark.source import plan_record, source
from oncemq.spark.source.source import StreamReader
from oncemq.testing.broker_process import BrokerProcess
from tests.spark.source.test_source import kept, numbered, rows_of, stream_reader, through_json, values_in

ALL = ReadAllAvailable()
BY_NAME = {"topic": "eu.orders", "startingOffsets": "earliest"}
BY_PATTERN = {"pattern": "*.orders", "startingOffsets": "earliest"}
BY_REGEX = {"regex": r".*\.orders", "startingOffsets": "earliest"}


@pytest.fixture(params=[BY_NAME, BY_PATTERN, BY_REGEX], ids=["by name", "by pattern", "by regex"])
def options(request: pytest.FixtureRequest, client: Client, tmp_path: Path) -> dict[str, str]:
    kept(client, "eu.orders")
    return {**request.param, "checkpointLocation": str(tmp_path)}


def planned(reader: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """Plan a micro-batch as Spark does, and return its end as its checkpoint has it."""
    end = through_json(reader.latestOffset(start, ALL))
    reader.partitions(start, end)
    return end


def read(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return values_in(rows_of(reader, reader.partitions(start, end)))


def begun(broker: BrokerProcess, client: Client, options: dict[str, str]) -> tuple[StreamReader, dict[str, Any]]:
    """A query after its first micro-batch, which has ten messages."""
    reader = stream_reader(broker, **options)
    client.put_many("eu.orders", numbered(0, 10))
    return reader, planned(reader, reader.initialOffset())


def test_a_checkpoint_behind_its_subscription_is_refused(
    broker: BrokerProcess, client: Client, options: dict[str, str]
) -> None:
    reader, first = begun(broker, client, options)
    client.put_many("eu.orders", numbered(10, 20))
    second = planned(reader, first)
    reader.commit(second)
    client.put_many("eu.orders", numbered(20, 30))
    wanted = r"at offset 10 of topic 'eu.orders', but the subscription 'spark' is at 20: .* seek 'eu.orders' spark 10"
    with pytest.raises(errors.CheckpointBehind, match=wanted):
        stream_reader(broker, **options).latestOffset(first, ALL)
    with pytest.raises(errors.CheckpointBehind, match=wanted):
        stream_reader(broker, **options).partitions(first, second)
    successor = stream_reader(broker, **options)
    assert read(successor, second, planned(successor, second)) == numbered(20, 30)


def test_the_first_micro_batch_is_not_replayed_after_it_was_acked(
    broker: BrokerProcess, client: Client, options: dict[str, str]
) -> None:
    reader, first = begun(broker, client, options)
    reader.commit(first)
    successor = stream_reader(broker, **options)
    start = successor.initialOffset()
    with pytest.raises(errors.CheckpointBehind, match=r"at offset 0 of topic 'eu.orders', but .* is at 10"):
        successor.partitions(start, first)


def test_a_repeated_commit_is_no_error(broker: BrokerProcess, client: Client, options: dict[str, str]) -> None:
    reader, first = begun(broker, client, options)
    client.put_many("eu.orders", numbered(10, 20))
    reader.commit(planned(reader, first))
    stream_reader(broker, **options).commit(first)
    assert client.subscriptions("eu.orders")[0].acked == 20


def test_messages_that_expired_are_not_acked(broker: BrokerProcess, client: Client) -> None:
    options = {**BY_NAME, "failOnDataLoss": "false"}
    reader = stream_reader(broker, **options)
    start = reader.initialOffset()
    client.put("eu.orders", "0")
    first = planned(reader, start)
    reader.commit(first)
    client.put_many("eu.orders", numbered(1, 5), ttl_s=0.05)
    client.put("eu.orders", "5")
    while client.subscriptions("eu.orders")[0].acked < 5:
        pass
    successor = stream_reader(broker, **options)
    assert read(successor, first, planned(successor, first)) == [b"5"]


def test_a_micro_batch_that_the_checkpoint_has_lost_is_planned_as_it_was(
    broker: BrokerProcess, client: Client, options: dict[str, str]
) -> None:
    reader, first = begun(broker, client, options)
    reader.commit(first)
    client.put_many("eu.orders", numbered(10, 20))
    second = planned(reader, first)
    client.put_many("eu.orders", numbered(20, 30))
    successor = stream_reader(broker, **options, maxOffsetsPerTrigger="3")
    successor.prepareForTriggerAvailableNow()
    assert through_json(successor.latestOffset(first, ReadMaxRows(3))) == second
    assert read(successor, first, second) == numbered(10, 20)
    third = through_json(successor.latestOffset(second, ALL))
    assert read(successor, second, third) == numbered(20, 30)


def test_the_first_micro_batch_is_planned_as_it_was(
    broker: BrokerProcess, client: Client, options: dict[str, str]
) -> None:
    _, first = begun(broker, client, options)
    client.put_many("eu.orders", numbered(10, 20))
    successor = stream_reader(broker, **options)
    assert through_json(successor.latestOffset(successor.initialOffset(), ALL)) == first


def test_a_plan_on_other_topics_is_not_used(broker: BrokerProcess, client: Client, options: dict[str, str]) -> None:
    _, first = begun(broker, client, options)
    client.delete_topic("eu.orders")
    kept(client, "eu.orders")
    client.put_many("eu.orders", numbered(0, 3))
    successor = stream_reader(broker, **options)
    end = through_json(successor.latestOffset(successor.initialOffset(), ALL))
    assert end != first
    assert end["topics"]["eu.orders"][1] == 3


def test_two_queries_with_one_name_on_other_topics_have_records_of_their_own(
    broker: BrokerProcess, client: Client
) -> None:
    ends, starts, readers = {}, {}, {}
    for topic in ("a", "b"):
        kept(client, topic)
        readers[topic] = stream_reader(broker, topic=topic, startingOffsets="earliest")
        starts[topic] = readers[topic].initialOffset()
        client.put_many(topic, numbered(0, 5))
        ends[topic] = planned(readers[topic], starts[topic])
    for topic in ("a", "b"):
        client.put(topic, "5")
        successor = stream_reader(broker, topic=topic, startingOffsets="earliest")
        assert through_json(successor.latestOffset(successor.initialOffset(), ALL)) == ends[topic]


def test_a_driver_that_was_replaced_records_no_plan(
    broker: BrokerProcess, client: Client, options: dict[str, str]
) -> None:
    former, first = begun(broker, client, options)
    client.put_many("eu.orders", numbered(10, 20))
    late = through_json(former.latestOffset(first, ALL))
    client.put_many("eu.orders", numbered(20, 30))
    successor = stream_reader(broker, **options)
    second = planned(successor, first)
    assert second != late
    with pytest.raises(errors.SubscriptionFenced):
        former.partitions(first, late)
    third = stream_reader(broker, **options)
    assert through_json(third.latestOffset(first, ALL)) == second


def test_a_late_plan_of_a_former_driver_is_replaced(
    broker: BrokerProcess, client: Client, options: dict[str, str]
) -> None:
    former, first = begun(broker, client, options)
    client.put_many("eu.orders", numbered(10, 20))
    second = through_json(former.latestOffset(first, ALL))
    successor = stream_reader(broker, **options)
    assert through_json(successor.latestOffset(first, ALL)) == second
    former.partitions(first, second)
    client.put_many("eu.orders", numbered(20, 30))
    assert read(successor, first, second) == numbered(10, 20)
    third = planned(successor, second)
    assert read(successor, second, third) == numbered(20, 30)


def test_a_plan_that_is_too_large_is_not_recorded(
    broker: BrokerProcess, client: Client, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, first = begun(broker, client, options)
    assert len(client.registry_list("spark-plans")) >= 1
    monkeypatch.setattr(plan_record, "REGISTRY_VALUE_BYTES_MAX", 10)
    client.put_many("eu.orders", numbered(10, 20))
    second = planned(reader, first)
    client.put_many("eu.orders", numbered(20, 30))
    assert stream_reader(broker, **options).latestOffset(first, ALL) != second


def test_a_query_that_has_got_another_id_is_refused(
    broker: BrokerProcess, client: Client, options: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"id": "one"}))
    _, first = begun(broker, client, options)
    assert stream_reader(broker, **options).latestOffset(first, ALL) == first
    (tmp_path / "metadata").write_text(json.dumps({"id": "two"}))
    with pytest.raises(errors.CheckpointBehind, match="had the id one and now has the id two"):
        stream_reader(broker, **options).latestOffset(first, ALL)
    # A new checkpoint has another id, too.
    successor = stream_reader(broker, **options)
    again = planned(successor, successor.initialOffset())
    assert stream_reader(broker, **options).latestOffset(again, ALL) == again


def test_the_checkpoint_is_durable_before_messages_are_acked(
    broker: BrokerProcess, client: Client, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, int]] = []

    def sync(location: str) -> None:
        synced.append((location, client.subscriptions("eu.orders")[0].acked))

    monkeypatch.setattr(source, "sync_checkpoint", sync)
    reader, first = begun(broker, client, options)
    synced.clear()
    reader.commit(first)
    assert synced == [(options["checkpointLocation"], 0)]
    assert client.subscriptions("eu.orders")[0].acked == 10


def test_the_id_of_the_query_is_durable_before_the_first_micro_batch_is_read(
    broker: BrokerProcess, client: Client, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(source, "sync_checkpoint", synced.append)
    reader, first = begun(broker, client, options)
    assert synced == [options["checkpointLocation"]]
    client.put_many("eu.orders", numbered(10, 20))
    planned(reader, first)
    assert len(synced) == 1, "later micro-batches are synced when they are acked"
