"""Values that can't be parsed, in pipelines: the reason names the column, and each becomes one dead letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.dataset as ds
import pytest

from oncemq.protocol.errors import PipelineFailed, PipelineInvalid
from oncemq.spark.audit.pipelines import audit_pipelines
from oncemq.spark.audit.pipelines.auditor import AuditedPipeline
from oncemq.spark.broker import Broker
from oncemq.spark.pipeline import Pipeline, Source, Transform, Value, run
from oncemq.spark.pipeline.values.decoder import decode
from oncemq.spark.targets.declarations import ParquetTarget, TopicTarget
from tests.spark.pipeline.files import changed, problems_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.client.sync import Client
    from oncemq.testing.broker_process import BrokerProcess

JSON = Value(format="json", schema="id bigint, at timestamp, tags array<int>, place struct<x: int, `y z`: double>")
CSV = Value(format="csv", schema="id bigint, `the name` string, price decimal(4,1)")


def reasons(spark: SparkSession, value: Value, values: list[bytes]) -> list[str]:
    messages = spark.createDataFrame([(each,) for each in values], "value binary")
    decoded = decode(messages, value)
    return [row[0] for row in decoded.messages.filter(~decoded.is_good).select(decoded.reason).collect()]


def test_the_reason_names_the_column(spark: SparkSession) -> None:
    bad_json = {
        b'{"id": "many"}': "column 'id' is no bigint",
        b'{"id": 1.5}': "column 'id' is no bigint",
        b'{"id": 1, "at": "soon"}': "column 'at' is no timestamp",
        b'{"id": 1, "tags": [1, "x"]}': "column 'tags' is no array<int>",
        b'{"id": 1, "place": {"x": 1, "y z": "far"}}': "column 'place' is no struct<x:int,y z:double>",
        b"[1]": "it is no JSON object",
        b'{"id": 1': "it is no JSON object",
        b'{"id": 1}}': "it is no JSON object",
        b"": "it is no JSON object",
    }
    begin = "the value is not JSON of the schema: "
    expected = [f"{begin}{why}: {value.decode()}" for value, why in bad_json.items()]
    assert reasons(spark, JSON, [b'{"id": 1}', *bad_json]) == expected
    assert reasons(spark, JSON, [b'{"id": "\xff"}']) == ["the value is not UTF-8, so it is not JSON"]
    begin = "the value is not CSV of the schema: "
    bad_csv = {b"x,y,1": "column 'id' is no bigint", b"1,y,1e9": "column 'price' is no decimal(4,1)"}
    bad_csv |= dict.fromkeys((b"1,y", b"1,y,2,3", b""), "it does not have 3 columns")
    expected = [f"{begin}{why}: {value.decode()}" for value, why in bad_csv.items()]
    assert reasons(spark, CSV, [b"1,y,2.5", *bad_csv]) == expected


def totals(folder: Path) -> Pipeline:
    return Pipeline(
        name="totals",
        source=Source(topic="orders"),
        value=Value(format="json", schema="id bigint, price double", on_error="dead_letter"),
        transform=Transform(sql="SELECT id, price * 2 AS double_price FROM messages WHERE id >= 0"),
        target=ParquetTarget(path=str(folder / "target")),
        checkpoint=str(folder / "checkpoint"),
    )


def put(client: Client, *values: str | bytes) -> None:
    for value in values:
        client.put("orders", value, key=b"k", headers={"h": b"1"})


def ids(folder: Path) -> list[int]:
    found: list[int] = ds.dataset(str(folder / "target"), format="parquet").to_table()["id"].to_pylist()
    return sorted(found)


def test_dead_letters_of_a_transformed_stream_are_exact_though_a_commit_fails(
    spark: SparkSession, oncemq_broker: BrokerProcess, oncemq_client: Client, tmp_path: Path
) -> None:
    oncemq_client.subscribe("orders", "totals")
    put(oncemq_client, '{"id": 1, "price": 0.5}', "nonsense", '{"id": -1, "price": 1}', '{"id": 2, "price": "low"}')
    summary = run(totals(tmp_path), url=oncemq_broker.url, session=spark)
    assert (summary.rows, summary.dead_letters) == (4, 2)
    assert ids(tmp_path) == [1]
    first, second = oncemq_client.dead_letters("totals.dead")
    assert (first.topic, first.offset, first.subscriber, first.text, first.key) == (
        "orders",
        1,
        "totals",
        "nonsense",
        b"k",
    )
    assert (first.headers, second.headers) == ({"h": b"1"}, {"h": b"1"})
    assert first.message.headers["oncemq-pipeline"] == b"totals"
    assert first.timestamp_ms > 0
    assert "it is no JSON object" in first.reason
    assert "column 'price' is no double" in second.reason

    # The dead letters are committed, then the commit of the rows fails.
    (log,) = (tmp_path / "target" / "_oncemq").glob("*/")
    (log / "last.json.fresh").mkdir()
    put(oncemq_client, "more nonsense", '{"id": 3, "price": 1}')
    with pytest.raises(PipelineFailed):
        run(totals(tmp_path), url=oncemq_broker.url, session=spark)
    (log / "last.json.fresh").rmdir()
    assert run(totals(tmp_path), url=oncemq_broker.url, session=spark).dead_letters == 1
    assert ids(tmp_path) == [1, 3]
    assert [letter.offset for letter in oncemq_client.dead_letters("totals.dead")] == [1, 3, 4]

    report = audit_pipelines(spark, Broker(url=oncemq_broker.url), [AuditedPipeline(totals(tmp_path))])
    assert report.findings == []

    without = msgspec.structs.replace(totals(tmp_path), value=Value(format="json", schema="id bigint, price double"))
    with pytest.raises(PipelineInvalid, match="was made for 2 sources, and the pipeline now reads 1, because"):
        run(without, url=oncemq_broker.url, session=spark)


def test_dead_letters_of_a_topic_can_be_retried(
    spark: SparkSession, oncemq_broker: BrokerProcess, oncemq_client: Client, tmp_path: Path
) -> None:
    oncemq_client.subscribe("orders", "totals")
    oncemq_client.subscribe("copy", "reader")
    value = Value(format="csv", schema="id bigint", on_error="dead_letter", dead_letter="bad.orders")
    pipeline = msgspec.structs.replace(
        totals(tmp_path), value=value, transform=None, target=TopicTarget(topic="copy", create=True)
    )
    put(oncemq_client, "1", "many", "2")
    assert run(pipeline, url=oncemq_broker.url, session=spark).dead_letters == 1
    assert [json.loads(message.value)["id"] for message in oncemq_client.read("copy", 0)] == [1, 2]
    assert oncemq_client.retry_dead_letters("bad.orders") == 1
    assert [message.text for message in oncemq_client.read("orders", 3)] == ["many"]
    wider = msgspec.structs.replace(pipeline, value=msgspec.structs.replace(value, schema="id string"))
    assert run(wider, url=oncemq_broker.url, session=spark).dead_letters == 0
    assert [json.loads(message.value)["id"] for message in oncemq_client.read("copy", 0)] == [1, 2, "many"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("  format: json", "  format: json\n  malformed: drop\n  on_error: drop", "say the same twice; remove one"),
        (
            "  format: json",
            "  format: json\n  dead_letter: x",
            "there are no dead letters; write `on_error: dead_letter`",
        ),
        (
            "  format: json",
            "  format: json\n  on_error: dead_letter\n  dead_letter: orders",
            "read its own output forever",
        ),
        ("  format: json", "  format: json\n  on_error: later", "later"),
        ("  topic: totals", "  console: true", "the console has no dead letters; write fail or drop"),
    ],
)
def test_what_makes_no_sense_is_found_by_validate(tmp_path: Path, old: str, new: str, problem: str) -> None:
    changes = [(old, new)]
    if "console" in new:
        changes.append(("  format: json", "  format: json\n  on_error: dead_letter"))
    assert any(problem in found for found in problems_in(tmp_path, changed(*changes)))
