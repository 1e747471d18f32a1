"""Pipelines over typed values: topics with a schema, Avro and Protobuf, and targets with a schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from oncemq.protocol.errors import PipelineFailed
from oncemq.protocol.schema.definitions.avro import parse_avro
from oncemq.protocol.schema.definitions.protobuf import parse_protobuf
from oncemq.protocol.schema.values.codec import codec_of
from oncemq.spark.pipeline import run
from oncemq.spark.pipeline.pipeline_file import load
from tests.spark.pipeline.files import changed, problems_in
from tests.spark.typed.test_typed import put_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.client.sync import Client
    from oncemq.testing.broker_process import BrokerProcess

FIELDS = "id: int64 not null, price: decimal(9,2)"
AVRO = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}'
PROTO = """syntax = "proto3"; message Order { int64 id = 1; string name = 2; } message Other { int64 id = 1; }"""


def run_file(folder: Path, text: str, broker: BrokerProcess, spark: SparkSession) -> None:
    (folder / "pipeline.yaml").write_text(text)
    run(load(str(folder / "pipeline.yaml")), url=broker.url, session=spark, folder=str(folder))


def test_typed_topics_are_source_and_target_and_what_does_not_match_is_a_dead_letter(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_topic("orders", retain_ms=3_600_000)
    client.create_topic("doubled", retain_ms=3_600_000)
    client.put("orders", b'{"id": "one"}')
    put_schema(client, "orders", FIELDS)
    put_schema(client, "doubled", "id: int64 not null, price: decimal(11,2)")
    client.put_frame("orders", pa.table({"id": [1, 2], "price": [1, 2]}))
    text = """
name: doubler
source: {topic: orders, columns: [offset]}
value: {format: typed, on_error: dead_letter}
transform: {sql: "SELECT id, CAST(price * 2 AS DECIMAL(11, 2)) AS price FROM messages WHERE message_offset > 0"}
target: {topic: doubled, value: typed, key: id}
"""
    run_file(tmp_path, text, broker, spark)
    assert [message.text for message in client.read("doubled")] == [
        '{"id":1,"price":"2.00"}',
        '{"id":2,"price":"4.00"}',
    ]
    assert [message.key for message in client.read("doubled")] == [b"1", b"2"]
    (letter,) = client.dead_letters("doubler.dead")
    assert (letter.topic, letter.offset, letter.message.value) == ("orders", 0, b'{"id": "one"}')
    assert letter.reason.startswith("id: expected int, got str")
    # A version that is added later reaches the target when the pipeline runs again.
    put_schema(client, "orders", FIELDS + ", note: string")
    client.put_frame("orders", pa.table({"id": [3], "note": ["!"]}))
    run_file(tmp_path, text, broker, spark)
    assert [message.text for message in client.read("doubled", 2)] == ['{"id":3,"price":null}']


def test_added_columns_of_a_typed_topic_reach_a_parquet_target(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_topic("orders", retain_ms=3_600_000)
    put_schema(client, "orders", FIELDS)
    client.put_frame("orders", pa.table({"id": [1]}))
    text = "{name: lake, source: {topic: orders}, value: {format: typed}, target: {parquet: out}}"
    run_file(tmp_path, text, broker, spark)
    put_schema(client, "orders", FIELDS + ", note: string")
    client.put_frame("orders", pa.table({"id": [2], "note": ["!"]}))
    run_file(tmp_path, text, broker, spark)
    found = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "out")).orderBy("id").collect()
    assert [(row.id, row.note) for row in found] == [(1, None), (2, "!")]


def test_avro_and_protobuf_are_read_with_a_definition(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_topic("avro", retain_ms=3_600_000)
    client.create_topic("proto", retain_ms=3_600_000)
    client.put("avro", codec_of(parse_avro(AVRO)).encode({"id": 1, "name": "a"}))
    client.put("proto", codec_of(parse_protobuf(PROTO, "Order")).encode({"id": 1, "name": "p"}))
    (tmp_path / "order.avsc").write_text(AVRO)
    (tmp_path / "order.proto").write_text(PROTO)
    text = """
name: both
sources:
  a: {topic: avro, value: {format: avro, schema_file: order.avsc}}
  p: {topic: proto, value: {format: protobuf, schema_file: order.proto, message: Order}}
transform: {sql: "SELECT id, name FROM a UNION ALL SELECT id, name FROM p"}
target: {parquet: out}
"""
    run_file(tmp_path, text, broker, spark)
    found = ds.dataset(str(tmp_path / "out"), format="parquet").to_table()
    assert sorted(found["name"].to_pylist()) == ["a", "p"]
    client.put("avro", b"\xff")
    with pytest.raises(PipelineFailed, match="topic 'avro', offset 1: the value is not a record"):
        run_file(tmp_path, text, broker, spark)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("format: avro", "avro needs a schema"),
        ("format: avro\n  schema_file: none.avsc", "none.avsc can't be read: No such file or directory"),
        ("format: json\n  schema_file: none.txt", "none.txt can't be read: No such file or directory"),
        ("format: avro\n  schema: '{'", "the Avro definition is not JSON"),
        ("format: protobuf\n  schema: 'message'", "schema"),
        ("format: typed\n  schema: id bigint", "the topic has the schema of typed values"),
        ("format: json\n  schema: id bigint\n  version: 2", "json has no versions"),
        ("format: json\n  schema: id bigint\n  message: M", "json has no messages"),
    ],
)
def test_what_is_wrong_with_a_section_is_said(tmp_path: Path, value: str, problem: str) -> None:
    text = changed(("format: json\n  schema: id bigint, price double", value))
    found = problems_in(tmp_path, text)
    assert len(found) == 1
    assert problem in found[0]


def test_a_typed_target_must_have_its_schema(tmp_path: Path) -> None:
    found = problems_in(tmp_path, changed(("topic: totals", "topic: totals\n  value: typed\n  create: true")))
    assert "a topic that the pipeline creates has no schema" in found[0]
