"""Rows to a target and dead letters to a topic, in one batch: each once, whatever fails between the two commits."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncemq.client.sync import Client
from oncemq.spark.options import sink_options
from oncemq.spark.sink import writers
from oncemq.spark.sink.writers import StreamWriter
from oncemq.spark.targets.dead_letters import DeadLetterWriter
from oncemq.testing.broker_process import BrokerProcess
from tests.spark.targets.failing_disk import Stopped
from tests.spark.targets.sink_drivers import (
    DeltaFolder,
    Message,
    ParquetBucket,
    ParquetFolder,
    PostgresRows,
    Sink,
    identity_of,
    record_batches,
    schema_of,
)

TOPIC = "numbers.dead"


@pytest.fixture(params=["parquet", "delta", "postgres", "parquet in s3"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Sink:
    if request.param == "parquet in s3":
        return ParquetBucket(request.getfixturevalue("s3"), tmp_path.name)
    if request.param == "parquet":
        return ParquetFolder(tmp_path / "numbers")
    if request.param == "delta":
        return DeltaFolder(tmp_path / "numbers")
    return PostgresRows(request.getfixturevalue("oncemq_postgres"))


def stop(*_: Any) -> None:
    raise Stopped


class Pipeline:
    """Numbers, of which the odd ones are dead letters."""

    def __init__(self, sink: Sink, broker: BrokerProcess, client: Client) -> None:
        self._sink, self._broker, self._client = sink, broker, client
        # The broker is that of other tests too, and remembers their queries.
        self.query = uuid.uuid4().hex
        client.subscribe(TOPIC, "reader")

    def writer(self) -> DeadLetterWriter:
        options = sink_options({"url": self._broker.url, "create": "true"}, is_stream=True)
        return DeadLetterWriter(self._sink.writer(), options, "")

    def stage(self, partitions: list[Iterable[int]], batch: int) -> list[Message]:
        return [self._write(numbers, batch, index) for index, numbers in enumerate(partitions)]

    def _write(self, numbers: Iterable[int], batch: int, partition: int) -> Message:
        task: DeadLetterWriter = pickle.loads(pickle.dumps(self.writer()))
        identity = identity_of(batch, partition, self.query)
        task.identify = task.writer.identify = lambda: identity
        message: Message = pickle.loads(pickle.dumps(task.write(iter([both(list(numbers))]))))
        return message

    def run(self, partitions: list[Iterable[int]], batch: int) -> None:
        self.writer().commit(self.stage(partitions, batch), batch)

    def check(self, numbers: Iterable[int]) -> None:
        """Each number is there once, as a row or as a dead letter."""
        expected = list(numbers)
        assert self._sink.numbers() == [number for number in expected if number % 2 == 0]
        letters = [message.text for message in self._client.read(TOPIC, 0)]
        assert letters == [str(number) for number in expected if number % 2]


def both(numbers: list[int]) -> Any:
    """A batch as Spark gives it to the sink."""
    good = pa.array([number % 2 == 0 for number in numbers])
    (rows,) = record_batches(numbers, len(numbers)) or [None]
    letters = {"topic": pa.array([TOPIC] * len(numbers)), "value": pa.array([str(each).encode() for each in numbers])}
    return pa.record_batch(
        {"row": with_nulls(rows, good), "dead": with_nulls(pa.record_batch(letters), pa.compute.invert(good))}
    )


def with_nulls(batch: Any, is_valid: Any) -> Any:
    return pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema), mask=pa.compute.invert(is_valid))


def test_rows_and_dead_letters_of_a_batch_are_written_once(sink: Sink, broker: BrokerProcess, client: Client) -> None:
    pipeline = Pipeline(sink, broker, client)
    pipeline.run([range(5), range(5, 8)], 0)
    pipeline.run([range(8)], 0)
    pipeline.run([[8, 10], [11]], 1)
    pipeline.run([[12]], 2)
    pipeline.check([*range(9), 10, 11, 12])
    assert sink.leftovers() == []


def test_a_driver_that_dies_between_the_two_commits_loses_and_doubles_nothing(
    sink: Sink, broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(sink, broker, client)
    pipeline.run([range(4)], 0)
    messages = pipeline.stage([range(4, 7), range(7, 9)], 1)
    dying = pipeline.writer()
    monkeypatch.setattr(dying.writer, "publish", stop)
    with pytest.raises(Stopped):
        dying.commit(messages, 1)
    assert sink.numbers() == [0, 2]
    pipeline.run([range(4, 9)], 1)
    pipeline.run([range(9, 12)], 2)
    pipeline.check(range(12))


def test_a_commit_of_dead_letters_that_fails_writes_no_rows(
    sink: Sink, broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(sink, broker, client)
    messages = pipeline.stage([range(4)], 0)
    writer = pipeline.writer()
    monkeypatch.setattr(writer._letters, "publish", stop)
    with pytest.raises(Stopped):
        writer.commit(messages, 0)
    # The broker may be away. What it has expires.
    monkeypatch.setattr(writer._letters, "abort", stop)
    with pytest.raises(Stopped):
        writer.abort([*messages, None], 0)
    assert sink.leftovers() == []
    pipeline.run([range(4)], 0)
    pipeline.check(range(4))


@pytest.mark.parametrize("topic", ["numbers", "dead letters"])
def test_a_topic_of_any_name_gets_its_rows(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    client.subscribe(TOPIC, "reader")
    client.subscribe(topic, "reader")
    rows = StreamWriter(sink_options({"url": broker.url, "topic": topic}, is_stream=True), schema_of(value="string"))
    writer = DeadLetterWriter(rows, sink_options({"url": broker.url, "create": "true"}, is_stream=True), "")
    query = uuid.uuid4().hex
    writer.identify = lambda: identity_of(0, 0, query)
    monkeypatch.setattr(writers, "task_identity", writer.identify)
    value = pa.record_batch({"value": ["good", ""]})
    dead = pa.record_batch({"topic": [TOPIC, TOPIC], "value": ["", "bad"]})
    batch = {"row": with_nulls(value, pa.array([True, False])), "dead": with_nulls(dead, pa.array([False, True]))}
    writer.commit([writer.write(iter([pa.record_batch(batch)]))], 0)
    assert [message.text for message in client.read(topic, 0)] == ["good"]
    assert [message.text for message in client.read(TOPIC, 0)] == ["bad"]


def test_a_task_that_fails_leaves_no_dead_letters(broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    pipeline = Pipeline(ParquetFolder(tmp_path), broker, client)
    task = pipeline.writer()
    identity = identity_of(0, 0, pipeline.query)
    task.identify = lambda: identity

    def breaking() -> Any:
        yield both([1, 3])
        raise ZeroDivisionError

    task.writer.identify = task.identify
    with pytest.raises(ZeroDivisionError):
        task.write(breaking())
    pipeline.run([range(4)], 0)
    pipeline.check(range(4))
