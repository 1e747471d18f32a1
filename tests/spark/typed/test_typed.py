"""Typed topics in Spark: the columns of a schema as a table and as a stream, checked when they are written."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from oncemq.client.internal import internal_api
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.commands import PutSchema
from oncemq.protocol.replies import SchemaReply
from oncemq.protocol.schema import Schema, parse_fields
from oncemq.protocol.schema.arrow import to_arrow
from oncemq.protocol.schema.definitions.avro import parse_avro
from oncemq.protocol.schema.definitions.protobuf import parse_protobuf
from oncemq.protocol.schema.values.codec import codec_of
from oncemq.spark.data_source import OnceMQSource
from oncemq.spark.options import sink_options
from oncemq.spark.sink import writers
from oncemq.spark.sink.task import TaskIdentity
from oncemq.spark.typed.schemas import schema_lookup, topic_schema
from oncemq.testing.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS = "id: int64 not null, name: string, price: decimal(9,2), at: timestamp, tags: list<string>, size: uint8"


def put_schema(client: Client, topic: str, schema: str | Schema) -> int:
    made = Schema(parse_fields(schema)) if isinstance(schema, str) else schema
    return internal_api(client).call(PutSchema(topic, made), SchemaReply).version


@pytest.fixture
def orders(client: Client) -> Client:
    client.create_topic("orders", retain_ms=3_600_000)
    put_schema(client, "orders", FIELDS)
    return client


def typed(spark: SparkSession, broker: BrokerProcess, topic: str = "orders", **options: Any) -> DataFrame:
    reader = spark.read.format("oncemq").option("url", broker.url).option("topic", topic)
    return reader.options(**{"schema": "topic", **options}).load()


def write(frame: DataFrame, broker: BrokerProcess, **options: Any) -> None:
    writer = frame.write.format("oncemq").mode("append").option("url", broker.url).option("topic", "orders")
    writer.options(**{"schema": "topic", **options}).save()


def test_a_dataframe_is_written_as_typed_rows_and_read_as_the_same_columns(
    spark: SparkSession, broker: BrokerProcess, orders: Client
) -> None:
    rows = spark.sql(
        """SELECT id, concat('n', id) AS name, CAST(id * 1.5 AS DECIMAL(9, 2)) AS price,
                  timestamp_micros(id * 1000000) AS at, array('a', NULL) AS tags, CAST(id AS SMALLINT) AS size,
                  CAST(id % 3 AS STRING) AS message_key
           FROM range(200) WHERE id < 200"""
    )
    write(rows, broker)
    found = typed(spark, broker, columns="key,offset")
    assert found.schema.simpleString() == (
        "struct<id:bigint,name:string,price:decimal(9,2),at:timestamp,tags:array<string>,size:smallint,"
        "message_key:binary,message_offset:bigint>"
    )
    assert (
        found.selectExpr("count(*)", "sum(id)", "sum(price)", "max(at)", "sum(size)").first()
        == rows.selectExpr("count(*)", "sum(id)", "sum(price)", "max(at)", "sum(size)").first()
    )
    message = next(iter(orders.read("orders")))
    value = json.loads(message.value)
    assert (value["name"], value["tags"], message.schema_version) == (f"n{value['id']}", ["a", None], 1)
    assert message.key == str(value["id"] % 3).encode()
    # The values are JSON for everybody else, in Spark too.
    plain = spark.read.format("oncemq").option("url", broker.url).option("topic", "orders").load()
    assert plain.where("get_json_object(CAST(value AS STRING), '$.id') = '7'").count() == 1


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        ("CAST(id AS STRING) AS id", "column 'id' is string, and int64 in the schema of 'orders': use cast()"),
        ("id, CAST(1 AS DOUBLE) AS price", "column 'price' is double, and decimal(9,2) in the schema of 'orders'"),
        ("id, 1 AS more", "column 'more' is not in the schema of 'orders', version 1, which has id, name"),
        ("'x' AS name", "column 'id' of 'orders' is missing, and not nullable"),
        ("CAST(NULL AS BIGINT) AS id", "column 'id' of 'orders' is null in 1 of 1 rows, and not nullable"),
        ("id, CAST(300 AS SMALLINT) AS size", "column 'size' is int16, and uint8 in the schema of 'orders'"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_the_name_of_the_column(
    spark: SparkSession, broker: BrokerProcess, orders: Client, select: str, reason: str
) -> None:
    with pytest.raises(Exception) as caught:
        write(spark.range(1).selectExpr(*_split(select)), broker)
    assert reason in str(caught.value)
    assert list(orders.read("orders")) == []


def _split(select: str) -> list[str]:
    return [part.strip() for part in select.replace("(9, 2)", "(9;2)").split(", ")]


def test_rows_of_two_versions_have_the_columns_of_the_chosen_one(
    spark: SparkSession, broker: BrokerProcess, orders: Client
) -> None:
    orders.put_frame("orders", pa.table({"id": [1, 2]}))
    put_schema(orders, "orders", FIELDS + ', state: string not null default "new", note: string, big: uint64 default 7')
    orders.put_frame("orders", pa.table({"id": [3], "state": ["paid"], "note": ["!"]}))
    found = typed(spark, broker).orderBy("id").select("id", "state", "note", "big").collect()
    assert [tuple(row)[:3] for row in found] == [(1, "new", None), (2, "new", None), (3, "paid", "!")]
    assert [row.big for row in found] == [7, 7, 7]
    first = typed(spark, broker, schemaVersion=1)
    assert "state" not in first.columns
    assert first.count() == 3


def test_a_stream_keeps_its_version_and_a_restart_takes_the_newest(
    spark: SparkSession, broker: BrokerProcess, orders: Client, tmp_path: Path
) -> None:
    orders.create_topic("copy", retain_ms=3_600_000)
    put_schema(orders, "copy", FIELDS)

    def run() -> None:
        source = spark.readStream.format("oncemq").option("url", broker.url).option("topic", "orders")
        rows = source.options(schema="topic", subscription="copier", startingOffsets="earliest").load()
        sink = rows.writeStream.format("oncemq").option("url", broker.url).option("topic", "copy")
        query = sink.options(schema="topic", checkpointLocation=str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    orders.put_frame("orders", pa.table({"id": [1, 2], "name": ["a", "b"]}))
    run()
    orders.put_frame("orders", pa.table({"id": [3]}))
    run()
    assert orders.read_frame("copy").select(["id", "name"]).to_pylist() == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
        {"id": 3, "name": None},
    ]
    put_schema(orders, "orders", FIELDS + ", note: string")
    orders.put_frame("orders", pa.table({"id": [4], "note": ["!"]}))
    with pytest.raises(Exception, match="column 'note' is not in the schema of 'copy'"):
        run()
    put_schema(orders, "copy", FIELDS + ", note: string")
    run()
    assert orders.read_frame("copy").select(["id", "note"]).to_pylist()[-1] == {"id": 4, "note": "!"}


def test_a_value_that_does_not_match_fails_is_dropped_or_kept_with_its_reason(
    spark: SparkSession, broker: BrokerProcess, client: Client
) -> None:
    client.create_topic("late", retain_ms=3_600_000)
    client.put_many("late", ['{"id": 1}', '{"id": "x"}', '{"id": 3}'])
    put_schema(client, "late", "id: int64 not null")
    with pytest.raises(Exception, match="topic 'late', offset 1: id: expected int, got str"):
        typed(spark, broker, "late").collect()
    assert [row.id for row in typed(spark, broker, "late", onError="drop").collect()] == [1, 3]
    kept = typed(spark, broker, "late", onError="keep", columns="offset").orderBy("message_offset").collect()
    assert [(row.id, row.message_offset, (row.error or "")[:3]) for row in kept] == [
        (1, 0, ""),
        (None, 1, "id:"),
        (3, 2, ""),
    ]


def columns_in(broker: BrokerProcess, topic: str, **options: str) -> list[dict[str, Any]]:
    """Read as a process of Spark does that runs one task after another."""
    source = OnceMQSource({"url": broker.url, "topic": topic, "schema": "topic", **options})
    reader = source.reader(source.schema())  # type: ignore[arg-type]
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_value_from_before_the_schema_is_read_with_its_newest_version(broker: BrokerProcess, client: Client) -> None:
    client.create_topic("late", retain_ms=3_600_000)
    client.put("late", '{"id": 1, "note": "x"}')
    put_schema(client, "late", "id: int64 not null")
    assert columns_in(broker, "late", onError="drop") == []
    put_schema(client, "late", "id: int64 not null, note: string")
    assert columns_in(broker, "late", onError="drop") == [{"id": 1, "note": "x"}]


def test_a_schema_of_another_topic_of_the_same_name_is_not_used(broker: BrokerProcess, client: Client) -> None:
    client.create_topic("late", retain_ms=3_600_000)
    put_schema(client, "late", "id: int64 not null")
    topic_id, _ = topic_schema(client, "late")
    find = schema_lookup(client, "late", topic_id)
    client.delete_topic("late")
    with pytest.raises(errors.TopicGone, match="there is no topic 'late'"):
        find(1)
    client.create_topic("late", retain_ms=3_600_000)
    put_schema(client, "late", "id: string")
    with pytest.raises(errors.TopicGone, match="'late' was deleted and created again"):
        find(1)


def test_values_in_avro_and_protobuf_are_columns(spark: SparkSession, broker: BrokerProcess, client: Client) -> None:
    avro = (
        '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}]}'
    )
    proto = 'syntax = "proto3"; message R { int64 id = 1; repeated string s = 2; }'
    client.create_topic("avro", retain_ms=3_600_000)
    client.create_topic("proto", retain_ms=3_600_000)
    client.put("avro", codec_of(parse_avro(avro)).encode({"id": 7, "s": "x"}))
    client.put("proto", codec_of(parse_protobuf(proto, "R")).encode({"id": 8, "s": ["x", "y"]}))
    found = typed(spark, broker, "avro", schema="avro", schemaDefinition=avro)
    assert [tuple(row) for row in found.collect()] == [(7, "x")]
    found = typed(spark, broker, "proto", schema="protobuf", schemaDefinition=proto, schemaMessage="R")
    assert [tuple(row) for row in found.collect()] == [(8, ["x", "y"])]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"schema": "mine"}, "'schema' must be one of topic, fields"),
        ({"schemaVersion": "2"}, "the schema of topic 'orders' has no version 2"),
        ({"schema": "avro"}, "'schemaDefinition' with schema=avro"),
        ({"schema": "avro", "schemaDefinition": "{"}, "'schemaDefinition': the Avro definition is not JSON"),
        ({"topic": "plain"}, "topic 'plain' has no schema"),
        ({"columns": "wrong"}, "there is no column 'wrong'"),
    ],
)
def test_wrong_options_are_errors(
    spark: SparkSession, broker: BrokerProcess, orders: Client, options: dict[str, str], reason: str
) -> None:
    orders.create_topic("plain")
    with pytest.raises(Exception) as caught:
        typed(spark, broker, **options).collect()
    assert reason in str(caught.value)


def write_directly(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, rows: Any, **options: str) -> None:
    """Write as a task and the driver do, without a JVM."""
    identity = TaskIdentity(query_id="", batch_id=0, partition=0, attempt=uuid.uuid4().hex)
    monkeypatch.setattr(writers, "task_identity", lambda: identity)
    chosen = sink_options({"url": broker.url, "topic": "orders", "schema": "topic", **options}, is_stream=False)
    writer = writers.BatchWriter(chosen, from_arrow_schema(rows.schema), False)
    writer.commit([writer.write(iter([rows]))])


def test_columns_of_the_schema_are_not_taken_for_those_of_the_message(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic("orders", retain_ms=3_600_000)
    put_schema(client, "orders", "id: int64, message_key: string, message_timestamp: timestamp")
    times = pa.array([5_000_000], pa.timestamp("us", "UTC"))
    row = pa.record_batch({"id": [1], "message_key": ["k"], "message_timestamp": times})
    write_directly(broker, monkeypatch, row)
    (message,) = client.read("orders")
    assert json.loads(message.value) == {"id": 1, "message_key": "k", "message_timestamp": "1970-01-01T00:00:05Z"}
    assert message.key is None


@pytest.mark.parametrize(
    ("rows", "options", "reason"),
    [
        ({"id": [1]}, {"timestamps": "keep"}, "timestamps=keep needs a column 'message_timestamp'"),
        ({"id": [1], "message_key": [1]}, {}, "column 'message_key' must be of type binary or string, not bigint"),
        ({"id": [1], "message_headers": ["h"]}, {}, "column 'message_headers' must be a map from string to binary"),
    ],
)
def test_columns_of_the_message_are_checked_before_tasks_run(
    broker: BrokerProcess,
    orders: Client,
    monkeypatch: pytest.MonkeyPatch,
    rows: dict[str, list[Any]],
    options: dict[str, str],
    reason: str,
) -> None:
    with pytest.raises(errors.SettingInvalid, match=reason):
        write_directly(broker, monkeypatch, pa.record_batch(rows), **options)
    assert list(orders.read("orders")) == []


def test_a_plain_write_to_a_typed_topic_is_checked(spark: SparkSession, broker: BrokerProcess, orders: Client) -> None:
    def write_value(value: str) -> None:
        writer = spark.sql(f"SELECT '{value}' AS value").write.format("oncemq").mode("append")
        writer.option("url", broker.url).option("topic", "orders").save()

    write_value('{"id": 1}')
    with pytest.raises(Exception, match="id: the field is missing, and not nullable"):
        write_value("{}")
    assert [message.schema_version for message in orders.read("orders")] == [1]


def test_every_type_survives_the_way_to_spark_and_back(
    spark: SparkSession, broker: BrokerProcess, client: Client
) -> None:
    fields = (
        "a: bool, b: int8, c: uint16, d: uint32, e: uint64, f: float32, g: binary, h: date, i: time, j: timestamp, "
        "k: timestamp_ntz, l: list<struct<x: uint8 not null, y: map<string, int16>>>, m: map<int32, list<decimal(5,1)>>"
    )
    row = {
        "a": True,
        "b": -1,
        "c": 2**16 - 1,
        "d": 2**32 - 1,
        "e": 2**64 - 1,
        "f": 0.5,
        "g": b"\0\1",
        "h": date(2024, 2, 29),
        "i": time(12, 30, 0, 5),
        "j": datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
        "k": datetime(2024, 2, 29, 12, 30, 0, 7),
        "l": [{"x": 200, "y": [("k", 1)]}, None],
        "m": [(3, [Decimal("1.5"), None])],
    }
    for topic in ("orders", "copy"):
        client.create_topic(topic, retain_ms=3_600_000)
        put_schema(client, topic, fields)
    rows = [row, dict.fromkeys(row)]
    client.put_frame("orders", pa.Table.from_pylist(rows, schema=to_arrow(Schema(parse_fields(fields)))))
    found = typed(spark, broker)
    writer = found.write.format("oncemq").mode("append").option("url", broker.url)
    writer.options(topic="copy", schema="topic").save()
    assert client.read_frame("copy").to_pylist() == client.read_frame("orders").to_pylist() == rows
