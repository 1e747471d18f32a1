"""Frames: tables are put as messages that every consumer reads, and messages of every kind are read as tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

import oncemq
from oncemq.client.internal import internal_api
from oncemq.protocol import errors
from oncemq.protocol.commands import PutSchema
from oncemq.protocol.replies import SchemaReply
from oncemq.protocol.schema import Schema, parse_fields
from oncemq.protocol.schema.definitions.avro import parse_avro

FIELDS = "id: int64 not null, name: string, price: float64"
ROWS = [
    {"id": 1, "name": "a", "price": 9.5},
    {"id": 2, "name": None, "price": 7.0},
    {"id": 3, "name": "c", "price": None},
]


def put_schema(client: oncemq.Client, topic: str, schema: str | Schema, **settings: Any) -> int:
    made = Schema(parse_fields(schema)) if isinstance(schema, str) else schema
    return internal_api(client).call(PutSchema(topic, made, **settings), SchemaReply).version


@pytest.fixture
def client() -> Iterator[oncemq.Client]:
    with oncemq.connect("memory:") as client:
        client.create_topic("orders", retain_ms=3_600_000)
        put_schema(client, "orders", FIELDS)
        yield client


@pytest.mark.parametrize("make", [pa.Table.from_pylist, pa.RecordBatch.from_pylist, pd.DataFrame, pl.DataFrame])
def test_a_frame_is_messages_and_a_frame_again(client: oncemq.Client, make: Any) -> None:
    receipt = client.put_frame("orders", make(ROWS), key="id", headers={"source": "test"})
    assert (receipt.offset, receipt.count) == (0, 3)
    messages = list(client.read("orders"))
    assert [message.text for message in messages] == [
        '{"id":1,"name":"a","price":9.5}',
        '{"id":2,"name":null,"price":7.0}',
        '{"id":3,"name":"c","price":null}',
    ]
    assert [message.key for message in messages] == [b"1", b"2", b"3"]
    assert all(message.headers == {"source": b"test"} for message in messages)
    table = client.read_frame("orders", columns=["offset", "key"])
    assert table.schema.names == ["id", "name", "price", "message_offset", "message_key"]
    assert table.select(["id", "name", "price"]).to_pylist() == ROWS
    assert table["message_offset"].to_pylist() == [0, 1, 2]
    assert client.read_frame("orders", 1, stop=2)["id"].to_pylist() == [2]


def test_a_column_that_does_not_fit_is_named_and_nothing_is_stored(client: oncemq.Client) -> None:
    with pytest.raises(errors.SchemaMismatch, match="column 'price' is string, and float64 in the schema of 'orders'"):
        client.put_frame("orders", pa.table({"id": [1], "price": ["x"]}))
    with pytest.raises(errors.SchemaMismatch, match="column 'id' of 'orders' is null in 1 of 1 rows"):
        client.put_frame("orders", pa.table({"id": pa.nulls(1, pa.int64())}))
    with pytest.raises(errors.SchemaMismatch, match="there is no column 'customer' for the key"):
        client.put_frame("orders", pa.table({"id": [1]}), key="customer")
    with pytest.raises(errors.SchemaUnknown, match="the schema of topic 'orders' has no version 2"):
        client.put_frame("orders", pa.table({"id": [1]}), version=2)
    client.create_topic("plain")
    with pytest.raises(errors.SchemaUnknown, match="topic 'plain' has no schema"):
        client.put_frame("plain", pa.table({"id": [1]}))
    assert list(client.read("orders")) == []
    assert client.read_frame("orders").to_pylist() == []


def test_a_limit_of_the_schema_holds_for_frames(client: oncemq.Client) -> None:
    from oncemq.protocol.schema import Field, Scalar

    limited = Schema((Field("age", Scalar("int32"), constraints={"minimum": 0}),))
    client.create_topic("people", retain_ms=3_600_000)
    put_schema(client, "people", limited)
    with pytest.raises(errors.SchemaMismatch, match="message 1 for 'people' does not match the schema: age"):
        client.put_frame("people", pa.table({"age": [1, -1]}))
    # Neither the batches nor the parts of a large frame that match are stored.
    chunks = [pa.array(ages, pa.int32()) for ages in ([1] * 600_000, [1, -1])]
    large = pa.table({"age": pa.chunked_array(chunks)})
    with pytest.raises(errors.SchemaMismatch, match="message 600001 for 'people' does not match the schema: age"):
        client.put_frame("people", large)
    assert list(client.read("people")) == []
    assert client.put_frame("people", pa.table({"age": [1, 2]})).count == 2


def test_a_large_frame_is_put_in_batches_and_read_in_parts(client: oncemq.Client) -> None:
    count = 200_000
    table = pa.table({"id": pa.array(range(count)), "name": pa.array(["some text"] * count)})
    receipt = client.put_frame("orders", table)
    assert receipt.count == count
    assert receipt.batches > 1
    tables = list(client.read_frames("orders"))
    assert len(tables) > 1
    assert pa.concat_tables(tables)["id"].to_pylist() == list(range(count))
    assert client.read_frame("orders", 150_000, stop=150_003)["id"].to_pylist() == [150_000, 150_001, 150_002]


def test_rows_of_two_versions_are_read_as_either(client: oncemq.Client) -> None:
    client.put_frame("orders", pa.table({"id": [1]}))
    assert put_schema(client, "orders", FIELDS + ', state: string not null default "new"') == 2
    client.put_frame("orders", pa.table({"id": [2], "state": ["paid"]}))
    client.put_frame("orders", pa.table({"id": [3]}), version=1)
    newest = client.read_frame("orders")
    assert newest.select(["id", "state"]).to_pylist() == [
        {"id": 1, "state": "new"},
        {"id": 2, "state": "paid"},
        {"id": 3, "state": "new"},
    ]
    assert client.read_frame("orders", version=1).schema.names == ["id", "name", "price"]


def test_rows_of_a_deleted_topic_are_not_read_by_the_schema_of_another_one(client: oncemq.Client) -> None:
    put_schema(client, "orders", "id: int64 not null")
    receipt = client.put_frame("orders", pa.table({"id": [1]}))
    schemas = client._context.frame_schemas
    client._driver.run(schemas.find("orders", receipt.topic_id, 1))
    with pytest.raises(errors.SchemaUnknown, match="the topic was deleted since"):
        client._driver.run(schemas.find("orders", receipt.topic_id - 1, 1))


def test_a_subscription_delivers_frames_and_acks_them(client: oncemq.Client) -> None:
    client.subscribe("orders", "s").close()
    client.put_frame("orders", pa.table({"id": [1, 2]}))
    client.put_frame("orders", pa.table({"id": [3]}))
    with client.subscription("orders", "s") as subscription:
        message = subscription.get(timeout_s=1)
        assert message is not None
        assert message.text.startswith('{"id":1,')
        found = [table["id"].to_pylist() for table in subscription.frames(timeout_s=0.1)]
        assert [each for part in found for each in part] == [2, 3]
    assert client.subscriptions("orders")[0].acked == 3
    client.put_frame("orders", pa.table({"id": [4, 5]}))
    with client.subscription("orders", "s", auto_ack=False) as subscription:
        assert next(subscription.frames(timeout_s=1))["id"].to_pylist() == [4, 5]
    with client.subscription("orders", "s", auto_ack=False) as subscription:
        assert next(subscription.frames(timeout_s=1))["id"].to_pylist() == [4, 5]
        subscription.ack(wait=True)
    assert client.subscriptions("orders")[0].acked == 5


def test_a_filter_and_a_pattern_deliver_frames_too(client: oncemq.Client) -> None:
    client.subscribe("orders", "s").close()
    client.subscribe_pattern("*", "p", start="earliest").close()
    client.put_frame("orders", pa.table({"id": [1, 2, 3]}), key="id")
    with client.subscription("orders", "s", filter=lambda message: message.key != b"2") as subscription:
        (table,) = subscription.frames(timeout_s=0.1, columns=["offset"])
        assert table.select(["id", "message_offset"]).to_pylist() == [
            {"id": 1, "message_offset": 0},
            {"id": 3, "message_offset": 2},
        ]
    with client.pattern_subscription("*", "p") as pattern:
        assert [table["id"].to_pylist() for table in pattern.frames(timeout_s=0.1)] == [[1, 2, 3]]


def test_a_message_that_does_not_match_is_named_and_can_be_skipped(client: oncemq.Client) -> None:
    client.create_topic("late", retain_ms=3_600_000)
    client.subscribe("late", "s").close()
    client.put("late", b'{"id": 1}')
    client.put("late", b"no JSON")
    put_schema(client, "late", "id: int64")
    client.put_frame("late", pa.table({"id": [3]}))
    with pytest.raises(
        errors.SchemaMismatch, match="offset 1 of 'late' does not match its schema: the value is not JSON"
    ):
        client.read_frame("late")
    with client.subscription("late", "s") as subscription:
        with pytest.raises(errors.SchemaMismatch, match="offset 1 of 'late'"):
            next(subscription.frames(timeout_s=1))
        subscription.ack(1)
        assert [table["id"].to_pylist() for table in subscription.frames(timeout_s=0.1)] == [[3]]


def test_a_topic_with_values_in_avro_takes_and_gives_frames(client: oncemq.Client) -> None:
    schema = parse_avro('{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}')
    client.create_topic("avro", retain_ms=3_600_000)
    put_schema(client, "avro", schema)
    client.put_frame("avro", pa.table({"id": [1, -1]}))
    assert [message.value for message in client.read("avro")] == [b"\x02", b"\x01"]
    assert client.read_frame("avro")["id"].to_pylist() == [1, -1]


def test_the_broker_checks_frames_if_it_is_told_to(client: oncemq.Client) -> None:
    client.create_topic("checked", retain_ms=3_600_000)
    put_schema(client, "checked", FIELDS, check="broker")
    assert client.put_frame("checked", pa.table({"id": [1, 2]})).count == 2


def test_frames_with_asyncio() -> None:
    async def run() -> None:
        async with oncemq.aio.connect("memory:") as client:
            await client.create_topic("orders", retain_ms=3_600_000)
            await client._driver.run(
                client._context.call(PutSchema("orders", Schema(parse_fields(FIELDS))), SchemaReply)
            )
            subscription = await client.subscribe("orders", "s")
            assert (await client.put_frame("orders", pl.DataFrame(ROWS))).count == 3
            assert (await client.read_frame("orders")).to_pylist() == ROWS
            found = [table.num_rows async for table in subscription.frames(timeout_s=0.1)]
            assert sum(found) == 3

    asyncio.run(run())
