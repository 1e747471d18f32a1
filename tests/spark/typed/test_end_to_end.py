"""A typed topic from end to end: written by Spark, read as objects and as columns, archived, deleted and restored, with
two versions of its schema. What does not match is refused at each place, or becomes a dead letter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from oncemq.protocol import errors
from oncemq.spark.lake import archive, restore
from oncemq.spark.pipeline import run
from oncemq.spark.pipeline.pipeline_file import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from oncemq.client.sync import Client
    from oncemq.testing.broker_process import BrokerProcess

FIELDS = "id: int64 not null, name: string, price: decimal(9,2)"


@dataclass
class Order:
    id: int
    name: str | None = None
    price: str | None = None
    state: str = "new"


def read(spark: SparkSession, broker: BrokerProcess, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("oncemq").options(url=broker.url, topic=topic, schema="topic")
    return reader.options(**options).load()


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    return [
        tuple(row) for row in frame.selectExpr("id", "name", "CAST(price AS STRING)", "state").orderBy("id").collect()
    ]


def test_a_typed_topic_from_end_to_end(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_topic("orders", retain_ms=3_600_000)
    assert client.put_schema("orders", FIELDS) == 1

    def write(frame: DataFrame) -> None:
        frame.write.format("oncemq").mode("append").options(url=broker.url, topic="orders", schema="topic").save()

    # A DataFrame is written with the first version, and rows of the second one by Python.
    write(spark.sql("SELECT id, concat('n', id) AS name, CAST(id AS DECIMAL(9, 2)) AS price FROM range(1, 4)"))
    assert client.put_schema("orders", FIELDS + ', state: string not null default "new"') == 2
    client.put("orders", Order(4, "four", "4.50", "paid"))
    client.put_frame("orders", pa.table({"id": [5], "state": ["sent"]}))

    # Python reads objects, and Spark reads columns.
    orders = sorted((message.decode(Order) for message in client.read("orders")), key=lambda order: order.id)
    assert orders[0] == Order(1, "n1", "1.00", "new")
    assert orders[3:] == [Order(4, "four", "4.50", "paid"), Order(5, None, None, "sent")]
    expected: list[tuple[object, ...]] = [
        *((number, f"n{number}", f"{number}.00", "new") for number in (1, 2, 3)),
        (4, "four", "4.50", "paid"),
        (5, None, None, "sent"),
    ]
    assert rows_of(read(spark, broker, "orders")) == expected
    assert read(spark, broker, "orders", schemaVersion="1").columns == ["id", "name", "price"]

    # The topic is archived, deleted, and restored with the versions of its schema.
    archive(str(tmp_path / "lake"), topic="orders", url=broker.url, session=spark, ack_last=True)
    before = [(message.value, message.schema_version) for message in client.read("orders")]
    versions = client.schema("orders")
    client.delete_topic("orders")
    (restored,) = restore(str(tmp_path / "lake"), create=True, url=broker.url, session=spark)
    assert restored.messages == 5
    assert [(message.value, message.schema_version) for message in client.read("orders")] == before
    after = client.schema("orders")
    assert versions is not None
    assert after is not None
    assert [each.schema for each in after.versions] == [each.schema for each in versions.versions]
    assert after.compatibility == versions.compatibility
    assert rows_of(read(spark, broker, "orders")) == expected
    client.create_topic("other", retain_ms=3_600_000)
    client.put_schema("other", "something: binary")
    with pytest.raises(errors.PipelineInvalid, match="topic 'other' has another version 1 of the schema"):
        restore(str(tmp_path / "lake"), to="other", url=broker.url, session=spark)

    # What does not match is refused by each of them, with the name of the column.
    with pytest.raises(errors.SchemaMismatch, match="id: the field is missing, and not nullable"):
        client.put("orders", b'{"name": "x"}')
    with pytest.raises(errors.SchemaMismatch, match="column 'price' is string"):
        client.put_frame("orders", pa.table({"id": [1], "price": ["x"]}))
    with pytest.raises(Exception, match="column 'name' is int, and string in the schema of 'orders': use cast"):
        write(spark.sql("SELECT 1L AS id, 2 AS name"))
    with pytest.raises(errors.SchemaIncompatible, match="name"):
        client.put_schema("orders", FIELDS.replace("name: string", "name: int8"))
    assert len(list(client.read("orders"))) == 5


def test_a_value_from_before_the_schema_is_a_dead_letter(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_topic("orders", retain_ms=3_600_000)
    client.put_many("orders", ['{"id": 1}', '{"id": 2, "price": 3}'])
    client.put_schema("orders", FIELDS)
    (tmp_path / "pipeline.yaml").write_text(
        "{name: lake, source: {topic: orders}, value: {format: typed, on_error: dead_letter}, target: {parquet: out}}"
    )
    run(load(str(tmp_path / "pipeline.yaml")), url=broker.url, session=spark, folder=str(tmp_path))
    assert [row.id for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [1]
    (letter,) = client.dead_letters("lake.dead")
    assert (letter.offset, letter.reason.partition(":")[0]) == (1, "price")
