"""Several sources in one pipeline, and several pipelines in one session."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oncemq.client.internal import internal_api
from oncemq.protocol.errors import PipelineFailed
from oncemq.spark.broker import Broker
from oncemq.spark.pipeline import Encoding, Input, Pipeline, Source, Table, Transform, Value, load, run, start
from oncemq.spark.pipeline.model import Trigger
from oncemq.spark.pipeline.progress import end_offsets
from oncemq.spark.pipeline.runs.acks import ack_last
from oncemq.spark.source.topic_offsets import topic_bounds
from oncemq.spark.targets.declarations import TopicTarget
from tests.spark.pipeline.test_runner import put_orders, read_totals, totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.client.sync import Client
    from oncemq.testing.broker_process import BrokerProcess

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"
DEADLINE_S = 120


def test_a_run_works_in_a_thread_that_did_not_build_the_session(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.subscribe("totals", "reader")
    put_orders(client, range(5))
    rows = []
    thread = threading.Thread(
        target=lambda: rows.append(run(totals(tmp_path), url=broker.url, session=spark).rows), daemon=True
    )
    thread.start()
    thread.join(DEADLINE_S)
    assert rows == [5]
    assert read_totals(client) == {number: number / 2 for number in range(5)}


def test_pipelines_that_were_started_run_together_and_are_stopped(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    """They have views of the same name in one session, and one of them fails."""
    client.subscribe("totals", "reader")
    put_orders(client, range(5))
    every = msgspec.structs.replace(totals(tmp_path), trigger=Trigger(every="100ms"))
    wrong = msgspec.structs.replace(
        totals(tmp_path / "wrong"),
        name="wrong",
        source=Source(topic="orders"),
        value=Value(format="text"),
        transform=Transform(sql="SELECT raise_error('so be it') AS value FROM messages"),
    )
    running, failing = (start(each, url=broker.url, session=spark) for each in (every, wrong))
    assert (running.name, failing.name) == ("totals", "wrong")
    with pytest.raises(PipelineFailed, match="so be it"):
        failing.wait(DEADLINE_S)
    assert (failing.status, type(failing.exception)) == ("failed", PipelineFailed)
    put_orders(client, range(5, 8))
    _until(lambda: len(read_totals(client)) == 8)
    assert running.status == "running"
    assert running.query is not None
    _until(lambda: running.progress is not None and running.progress.lag == 0)
    assert running.wait(0.01) is None
    summary = running.stop(DEADLINE_S)
    assert summary is not None
    assert (summary.rows, summary.is_stopped) == (8, True)
    assert str(running.status) == "stopped"


def test_runs_without_a_session_share_one_and_the_first_to_end_does_not_stop_it(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.subscribe("totals", "reader")
    client.subscribe("orders", "other")
    put_orders(client, range(5))
    master = str(spark.sparkContext.master)
    every = msgspec.structs.replace(totals(tmp_path), trigger=Trigger(every="100ms"))
    running = start(every, url=broker.url, master=master)
    other = msgspec.structs.replace(totals(tmp_path / "other"), name="other")
    assert run(other, url=broker.url, master=master).rows == 5
    put_orders(client, range(5, 8))
    _until(lambda: sum(1 for _ in client.read("totals", 0)) == 13)
    assert running.stop(DEADLINE_S) is not None
    assert spark.range(3).count() == 3


def test_what_one_source_has_read_is_not_acked_for_another_that_reads_the_same_topic(
    broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    """The other one has not seen the topic yet, because it was created while the run started."""
    sources = {
        "all": Input(source=Source(pattern="orders.#")),
        "eu": Input(source=Source(topic="orders.eu")),
    }
    pipeline = Pipeline(
        name="p", sources=sources, target=TopicTarget(topic="out"), checkpoint=str(tmp_path / "checkpoint")
    )
    client.subscribe_pattern("orders.#", "p.all", "earliest")
    client.subscribe("orders.eu", "p.eu", "earliest")
    client.put_many("orders.eu", [b"1", b"2", b"3"])
    empty: dict[str, Any] = {"broker": internal_api(client).broker_id, "topics": {}}
    end = empty | {"topics": {"orders.eu": [topic_bounds(client, "orders.eu").topic_id, 3]}}
    progress = {
        "sources": [
            {"endOffset": empty, "latestOffset": empty | {"source": "pattern orders.#, subscription p.all"}},
            {"endOffset": end, "latestOffset": end | {"source": "topic orders.eu, subscription p.eu"}},
        ]
    }
    ack_last(pipeline, Broker(url=broker.url), end_offsets(progress))
    assert {info.subscriber: info.acked for info in client.subscriptions("orders.eu")} == {"p.all": 0, "p.eu": 3}


def test_the_example_of_a_join_pairs_orders_with_payments_once(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    example = load(str(EXAMPLES / "paid-orders.yaml"))
    pipeline = msgspec.structs.replace(example, checkpoint=str(tmp_path / "checkpoint"), ack_last=True)
    for topic in ("orders", "payments"):
        client.subscribe(topic, f"paid-orders.{topic}")
    client.subscribe("paid-orders", "reader")

    def order(number: int, customer: str) -> None:
        client.put("orders", json.dumps({"id": number, "customer": customer, "amount": 1.5 * number}))

    order(1, "ada")
    order(2, "nobody")
    order(3, "grace")
    client.put("payments", '{"order": 3, "method": "card"}')
    client.put("payments", '{"order": 2, "method": "cash"}')
    summary = run(pipeline, url=broker.url, session=spark)
    assert (summary.rows, summary.lag) == (5, 0)
    assert [info.acked for topic in ("orders", "payments") for info in client.subscriptions(topic)] == [3, 2]
    # The payment of an order of the previous run.
    client.put("payments", '{"order": 1, "method": "card"}')
    assert run(pipeline, url=broker.url, session=spark).rows == 1
    found = {message.key: json.loads(message.value) for message in client.read("paid-orders", 0)}
    assert found == {
        b"1": {"id": 1, "name": "Ada Lovelace", "amount": 1.5, "method": "card"},
        b"2": {"id": 2, "name": None, "amount": 3.0, "method": "cash"},
        b"3": {"id": 3, "name": "Grace Hopper", "amount": 4.5, "method": "card"},
    }
    assert client.subscriptions("payments")[0].acked == 3


def counts(folder: Path, **fields: Any) -> Pipeline:
    return Pipeline(
        name="counts",
        sources={"words": Input(source=Source(topic="words"), value=Value(format="text"))},
        tables={"colours": Table(topic="colours", value=Value(format="json", schema="word string, colour string"))},
        transform=Transform(
            sql="SELECT colour, count(*) AS many FROM words JOIN colours ON words.value = colours.word GROUP BY colour"
        ),
        target=TopicTarget(topic="counts"),
        encoding=Encoding(key="colour"),
        output="update",
        checkpoint=str(folder / "checkpoint"),
        **fields,
    )


def test_updates_of_a_topic_are_the_groups_that_changed_once(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.subscribe("words", "counts.words")
    client.subscribe("counts", "reader")
    client.create_topic("colours", retain_ms=1_000_000)
    for word, colour in (("sky", "blue"), ("sea", "blue"), ("sun", "red")):
        client.put("colours", json.dumps({"word": word, "colour": colour}))

    client.put_many("words", ["sky", "sun", "sea"])
    assert run(counts(tmp_path), url=broker.url, session=spark).rows == 3
    assert sorted(written(client)) == [("blue", 2), ("red", 1)]
    client.put("words", "sky")
    assert run(counts(tmp_path), url=broker.url, session=spark).rows == 1
    assert written(client)[2:] == [("blue", 3)]
    forget_last_commit(tmp_path)
    run(counts(tmp_path), url=broker.url, session=spark)
    assert written(client)[2:] == [("blue", 3)]


def test_the_complete_output_of_a_topic_has_all_groups_in_each_batch_once(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.subscribe("words", "counts.words")
    client.subscribe("counts", "reader")
    client.create_topic("colours", retain_ms=1_000_000)
    for word, colour in (("sky", "blue"), ("sun", "red")):
        client.put("colours", json.dumps({"word": word, "colour": colour}))
    pipeline = msgspec.structs.replace(counts(tmp_path), output="complete")

    client.put_many("words", ["sky", "sun"])
    assert run(pipeline, url=broker.url, session=spark).rows == 2
    assert sorted(written(client)) == [("blue", 1), ("red", 1)]
    client.put("words", "sky")
    assert run(pipeline, url=broker.url, session=spark).rows == 1
    assert sorted(written(client)[2:]) == [("blue", 2), ("red", 1)]
    forget_last_commit(tmp_path)
    run(pipeline, url=broker.url, session=spark)
    assert len(written(client)) == 4


def written(client: Client) -> list[tuple[str, int]]:
    values = [json.loads(message.value) for message in client.read("counts", 0)]
    return [(value["colour"], value["many"]) for value in values]


def forget_last_commit(folder: Path) -> None:
    """The checkpoint loses the last entry of its commit log: the batch is repeated."""
    last = max((folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def _until(condition: Any) -> None:
    import time

    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
