"""Pipelines against a real broker: each message counts once, from run to run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oncemq.protocol.errors import PipelineFailed, TopicUnknown
from oncemq.spark.broker import Broker
from oncemq.spark.pipeline import Pipeline, Source, Transform, Value, run
from oncemq.spark.pipeline.progress import Batch, Summary
from oncemq.spark.targets.declarations import TopicTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.client.sync import Client
    from oncemq.testing.broker_process import BrokerProcess


class Told:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.batches: list[Batch] = []
        self.notices: list[str] = []
        self.ends: list[Summary | None] = []

    def begin(self, name: str) -> None:
        self.names.append(name)

    def batch(self, batch: Batch) -> None:
        self.batches.append(batch)

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def end(self, summary: Summary | None) -> None:
        self.ends.append(summary)


def totals(folder: Path) -> Pipeline:
    return Pipeline(
        name="totals",
        source=Source(topic="orders", max_per_trigger=10),
        value=Value(format="json", schema="id bigint, price double, pieces int"),
        transform=Transform(sql="SELECT id, price * pieces AS total FROM messages"),
        target=TopicTarget(topic="totals", create=True),
        checkpoint=str(folder / "checkpoint"),
    )


def put_orders(client: Client, numbers: range) -> None:
    # Of a topic that nobody has subscribed to, nothing is kept.
    client.subscribe("orders", "totals")
    for number in numbers:
        client.put("orders", json.dumps({"id": number, "price": 0.5, "pieces": number}))


def read_totals(client: Client) -> dict[int, float]:
    values = [json.loads(message.value) for message in client.read("totals", 0)]
    found = {value["id"]: value["total"] for value in values}
    assert len(found) == len(values), "a message is there twice"
    return found


def acked(client: Client) -> int:
    [subscription] = client.subscriptions("orders")
    assert subscription.subscriber == "totals"
    return subscription.acked


def test_each_message_counts_once_from_run_to_run(
    spark: SparkSession, oncemq_broker: BrokerProcess, oncemq_client: Client, tmp_path: Path
) -> None:
    oncemq_client.subscribe("totals", "reader")
    put_orders(oncemq_client, range(25))
    told = Told()
    summary = run(totals(tmp_path), url=oncemq_broker.url, session=spark, reporter=told)
    assert (summary.rows, summary.batches, summary.lag, summary.is_stopped) == (25, 3, 0, False)
    assert [(batch.number, batch.rows, batch.lag) for batch in told.batches] == [(0, 10, 15), (1, 10, 5), (2, 5, 0)]
    assert (told.names, told.ends) == (["totals"], [summary])
    assert read_totals(oncemq_client) == {number: number / 2 for number in range(25)}
    # The last micro-batch is held in the broker, in case the checkpoint forgets it.
    assert acked(oncemq_client) == 20
    # A run without new messages acks it too, if it is asked to.
    with_ack = msgspec.structs.replace(totals(tmp_path), ack_last=True)
    assert run(with_ack, url=oncemq_broker.url, session=spark).rows == 0
    assert acked(oncemq_client) == 25

    put_orders(oncemq_client, range(25, 30))
    assert run(with_ack, url=oncemq_broker.url, session=spark).rows == 5
    assert read_totals(oncemq_client) == {number: number / 2 for number in range(30)}
    assert acked(oncemq_client) == 30

    assert run(with_ack, url=oncemq_broker.url, session=spark).rows == 0
    assert acked(oncemq_client) == 30


def test_a_value_that_stops_a_pipeline_is_named_and_comes_again(
    spark: SparkSession, oncemq_broker: BrokerProcess, oncemq_client: Client, tmp_path: Path
) -> None:
    oncemq_client.subscribe("totals", "reader")
    put_orders(oncemq_client, range(2))
    oncemq_client.put("orders", "no order")
    told = Told()
    with pytest.raises(
        PipelineFailed,
        match="topic 'orders', offset 2: the value is not JSON of the schema: it is no JSON object: no order",
    ):
        run(totals(tmp_path), url=oncemq_broker.url, session=spark, reporter=told)
    assert told.ends == [None]
    patient = msgspec.structs.replace(
        totals(tmp_path), value=msgspec.structs.replace(totals(tmp_path).value, malformed="drop")
    )
    assert run(patient, url=oncemq_broker.url, session=spark).rows == 3
    assert read_totals(oncemq_client) == {0: 0.0, 1: 0.5}


def test_an_error_of_the_broker_is_that_error(
    spark: SparkSession, oncemq_broker: BrokerProcess, oncemq_client: Client, tmp_path: Path
) -> None:
    put_orders(oncemq_client, range(1))
    nowhere = msgspec.structs.replace(totals(tmp_path), target=TopicTarget(topic="totals"))
    with pytest.raises(TopicUnknown, match="totals"):
        run(nowhere, url=oncemq_broker.url, session=spark)


def test_two_runs_do_not_share_a_checkpoint(tmp_path: Path) -> None:
    from oncemq.spark.pipeline.runs.checkpoint_lock import locked

    folder = str(tmp_path / "checkpoint")
    with locked(folder), pytest.raises(PipelineFailed, match="another run uses the checkpoint"), locked(folder):
        pass
    with locked(folder):
        pass


def test_every_setting_of_the_source_reaches_it(tmp_path: Path) -> None:
    from oncemq.spark.options import source_options
    from oncemq.spark.pipeline.runs.stream import source_options as options_of
    from oncemq.spark.source.offset_spec import Timestamp

    def made(**source: Any) -> Any:
        pipeline = msgspec.structs.replace(totals(tmp_path), source=Source(**source))
        return source_options(options_of(pipeline, "messages", Broker(url="tcp://host:1")), is_stream=True)

    options = made(topics=("a,b", "c"), subscription="s", max_per_trigger=5, partitions=3, start={"c": 7})
    assert (options.selection.topics, options.subscription) == (("a,b", "c"), "s")
    assert (options.batch_limits.rows_max, options.task_limits.tasks) == (5, 3)
    assert (options.start.of("c"), options.start.of("a,b"), options.broker.url) == (7, "earliest", "tcp://host:1")
    assert made(topic="a", start="1970-01-01T00:00:01Z").start.of("a") == Timestamp(1000)
    assert (made(pattern="a.*").selection.pattern, made(pattern="a.*", start="latest").start.default) == (
        "a.*",
        "latest",
    )
