"""Topics with a schema: values are checked before they are put, whichever way they are put, and read as objects."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import decimal
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pydantic
import pytest

import oncemq
import oncemq.aio
from oncemq import errors
from oncemq.protocol.batch import encode_batch
from oncemq.testing.broker_process import BrokerProcess
from tests.client.event_loop import on_event_loop
from tests.protocol.schema.test_definitions import AVRO, PROTO

FIELDS = "id: int64 not null, name: string, price: decimal(10,2), at: timestamp"


@dataclasses.dataclass
class Order:
    id: int
    name: str | None = None
    price: decimal.Decimal | None = None
    at: datetime.datetime | None = None


class OrderStruct(msgspec.Struct):
    id: int
    price: decimal.Decimal | None = None


class OrderModel(pydantic.BaseModel):
    id: int
    price: decimal.Decimal | None = None


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory:{tmp_path.name}"


@pytest.fixture
def client(url: str) -> Iterator[oncemq.Client]:
    with oncemq.connect(url) as client:
        client.create_topic("orders", retain_ms=10**9)
        yield client


@pytest.fixture
def typed(client: oncemq.Client) -> oncemq.Client:
    client.put_schema("orders", FIELDS)
    return client


def _values(client: oncemq.Client) -> list[Any]:
    return [json.loads(message.value) for message in client.read("orders", "earliest")]


def test_versions_and_settings_are_put_and_listed(client: oncemq.Client) -> None:
    assert client.schema("orders") is None
    assert client.put_schema("orders", "id: int64 not null") == 1
    assert client.put_schema("orders", "id: int64 not null", compatibility="full") == 1
    assert client.put_schema("orders", "id: int64 not null, name: string", check="broker") == 2
    found = client.schema("orders")
    assert found is not None
    assert (found.compatibility, found.check, [each.version for each in found.versions]) == ("full", "broker", [1, 2])
    assert client.put_schema("orders", check="client") == 2
    with pytest.raises(errors.TopicUnknown):
        client.schema("nowhere")
    with pytest.raises(errors.TopicUnknown):
        client.put_schema("nowhere", "id: int64")


def test_what_would_break_is_listed(typed: oncemq.Client) -> None:
    assert typed.check_schema("orders", FIELDS + ", tags: list<string>") == []
    [problem] = typed.check_schema("orders", FIELDS + ", tags: list<string> not null")
    assert problem.startswith("tags: it is not nullable, has no default, and the values lack it: new readers can't")
    assert typed.check_schema("orders", "id: string", compatibility="none") == []
    with pytest.raises(errors.SchemaIncompatible, match="id: a reader expects string, and values are int64"):
        typed.put_schema("orders", "id: string")


def test_an_arrow_schema_is_a_definition(client: oncemq.Client) -> None:
    client.put_schema("orders", pa.schema({"id": pa.int64(), "tags": pa.list_(pa.string())}))
    client.put("orders", {"id": 1, "tags": ["a"]})
    with pytest.raises(TypeError):
        client.put_schema("orders", 5)


OBJECTS = [
    {"id": 1, "price": "9.50"},
    {"id": 1, "price": decimal.Decimal("9.50")},
    Order(1, price=decimal.Decimal("9.50")),
    OrderStruct(1, decimal.Decimal("9.50")),
    OrderModel(id=1, price=decimal.Decimal("9.50")),
    b'{"id": 1, "price": "9.50"}',
    '{"id": 1, "price": "9.50"}',
]
Put = Callable[[oncemq.Client, Any], object]


def _in_transaction(client: oncemq.Client, value: Any) -> None:
    with client.transaction() as transaction:
        transaction.put("orders", value)


def _in_transaction_many(client: oncemq.Client, value: Any) -> None:
    with client.transaction() as transaction:
        transaction.put_many("orders", [value])


def _nowait(client: oncemq.Client, value: Any) -> None:
    client.put_nowait("orders", value)
    client.flush()


def _stage(client: oncemq.Client, value: Any) -> None:
    client.stage("s", "orders", "", 0, [value])
    client.commit("", 0, "orders", [("s", 1)])


WAYS: list[Put] = [
    lambda client, value: client.put("orders", value),
    lambda client, value: client.put_many("orders", [value]),
    _nowait,
    _in_transaction,
    _in_transaction_many,
    _stage,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_objects_and_text_are_put_in_every_way(url: str, typed: oncemq.Client, way: Put, value: Any) -> None:
    with oncemq.connect(url) as other:
        # This client has not looked up the schema yet.
        way(other, value)
    [message] = typed.read("orders", "earliest")
    assert message.schema_version == 1
    assert message.decode(OrderStruct) == OrderStruct(1, decimal.Decimal("9.50"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [b"no JSON", {"id": "1"}, {"idd": 1}, OrderStruct(1, decimal.Decimal("1.234"))])
def test_what_does_not_match_is_refused_in_every_way(url: str, typed: oncemq.Client, way: Put, value: Any) -> None:
    with oncemq.connect(url) as other:
        with pytest.raises(errors.SchemaMismatch, match=r"'orders'.* does not match") as raised:
            way(other, value)
        assert any(name in raised.value.text for name in ("not JSON", "id:", "idd:", "price:"))
        way(other, {"id": 2})
    assert _values(typed) == [{"id": 2}]


def test_an_object_needs_a_schema(client: oncemq.Client) -> None:
    for way in WAYS:
        with pytest.raises(TypeError, match="values, keys and headers are bytes or str, not Order"):
            way(client, Order(1))


def test_a_stager_checks_batches_that_were_encoded_elsewhere(typed: oncemq.Client) -> None:
    stager = typed.stager("s", "orders", "w", 1)
    stager.add(2, encode_batch([b'{"id": 1}', b'{"id": 2}']))
    with pytest.raises(errors.SchemaMismatch, match="message 1 for 'orders'"):
        stager.add(2, encode_batch([b'{"id": 3}', b"{}"]))
    with pytest.raises(errors.Malformed, match="names version 1 of its schema, and its envelope none"):
        stager.add(1, encode_batch([b'{"id": 3}'], None, None, None, 1))
    typed.commit("w", 1, "orders", [("s", stager.finish())])
    assert _values(typed) == [{"id": 1}, {"id": 2}]


def test_puts_continue_when_a_topic_gets_its_schema(url: str, client: oncemq.Client) -> None:
    with oncemq.connect(url) as other:
        for way in WAYS[:2]:
            way(other, b"before")
        client.put_schema("orders", "id: int64")
        other.put("orders", b'{"id": 1}')
        with pytest.raises(errors.SchemaMismatch):
            other.put("orders", b"after")
    assert [message.schema_version for message in client.read("orders", "earliest")] == [0, 0, 1]


def test_messages_without_waiting_are_refused_once_when_a_topic_gets_its_schema(
    url: str, client: oncemq.Client
) -> None:
    with oncemq.connect(url) as other:
        other.put_nowait("orders", b"before").result()
        client.put_schema("orders", "id: int64")
        with pytest.raises(errors.SchemaRequired):
            other.put_nowait("orders", b'{"id": 1}').result()
        other.put_nowait("orders", b'{"id": 2}').result()
        with pytest.raises(errors.SchemaMismatch):
            other.put_nowait("orders", b"after")
        other.flush()
    assert [message.schema_version for message in client.read("orders", "earliest")] == [0, 1]


def _with_a_stager(client: oncemq.Client, value: Any) -> None:
    stager = client.stager("stager", "orders", "", 0)
    stager.add(1, encode_batch([value]))
    client.commit("", 0, "orders", [("stager", stager.finish())])


def _with_flush(put: Put) -> Put:
    """With an outbox, a refusal is raised by the flush, until it is `seen`."""

    def way(client: Any, value: Any) -> None:
        put(client, value)
        try:
            client.flush()
        finally:
            for refusal in client.refusals():
                client.seen(refusal)

    return way


#: With the options of the client.
ALL_WAYS = [
    *((way, False) for way in (*WAYS, _with_a_stager)),
    *((_with_flush(way), True) for way in (*WAYS[:2], lambda client, value: client.put_nowait("orders", value))),
]


@pytest.fixture
def other(url: str, tmp_path: Path, has_outbox: bool) -> Iterator[oncemq.Client]:
    with _connect(url, tmp_path / "box" if has_outbox else None) as other:
        yield other


def _connect(url: str, outbox: Path | None) -> oncemq.Client:
    return oncemq.connect(url) if outbox is None else oncemq.connect(url, outbox=outbox)


@pytest.mark.parametrize(("way", "has_outbox"), ALL_WAYS)
def test_a_new_version_is_found_when_a_value_needs_it(typed: oncemq.Client, other: oncemq.Client, way: Put) -> None:
    way(other, b'{"id": 1}')
    typed.put_schema("orders", FIELDS + ", tags: list<string>")
    way(other, b'{"id": 2, "tags": ["new"]}')
    assert [message.schema_version for message in typed.read("orders", "earliest")] == [1, 2]


@pytest.mark.parametrize(("way", "has_outbox"), ALL_WAYS)
@pytest.mark.parametrize("is_typed", [False, True])
def test_a_topic_that_gets_its_schema_or_is_created_again_refuses_messages_once(
    client: oncemq.Client, other: oncemq.Client, way: Put, is_typed: bool
) -> None:
    if is_typed:
        client.put_schema("orders", "id: int64")
    way(other, b'{"id": 1}')
    client.delete_topic("orders")
    client.create_topic("orders", retain_ms=10**9)
    client.put_schema("orders", "id: int64, name: string")
    for _ in range(3):
        try:
            way(other, b'{"id": 2}')
        except (errors.SchemaRequired, errors.SchemaUnknown):
            continue
        break
    way(other, b'{"id": 3}')
    assert [value["id"] for value in _values(client)] == [2, 3]


@pytest.mark.parametrize(("way", "has_outbox"), [each for each in ALL_WAYS if each[0] is not _with_a_stager])
def test_an_object_is_put_as_soon_as_its_topic_has_a_schema(
    client: oncemq.Client, other: oncemq.Client, way: Put
) -> None:
    client.delete_topic("orders")
    with pytest.raises(TypeError, match="topic 'orders' has no schema"):
        way(other, Order(1))
    client.create_topic("orders", retain_ms=10**9)
    with pytest.raises(TypeError, match="topic 'orders' has no schema"):
        way(other, Order(1))
    client.put_schema("orders", FIELDS)
    way(other, Order(2))
    assert [value["id"] for value in _values(client)] == [2]


def test_values_before_one_that_needs_a_new_version_are_put_once(
    typed: oncemq.Client, url: str, tmp_path: Path
) -> None:
    values = [{"id": number} for number in range(100)]
    for field, outbox in (("one", None), ("two", tmp_path / "box")):
        with _connect(url, outbox) as other:
            other.put_many("orders", iter(values[:1]))
            version = typed.put_schema("orders", f"{FIELDS}, {field}: string", compatibility="none")
            late = {"id": 100, field: "x"}
            other.put_many("orders", iter([*values[1:], late]), keys=iter(map(str, range(1, 101))))
            other.flush()
        found = list(typed.read("orders", "earliest"))[-101:]
        assert [json.loads(message.value)["id"] for message in found] == list(range(101))
        assert [message.key for message in found[1:]] == [b"%d" % number for number in range(1, 101)]
        assert found[-1].schema_version == version


def test_values_of_which_some_are_not_checked_claim_no_version(client: oncemq.Client) -> None:
    client.put_schema("orders", FIELDS, check="none")
    with client.transaction() as transaction:
        transaction.put("orders", Order(1))
        transaction.put("orders", b"anything")
    client.put_many("orders", [Order(2)])
    assert [message.schema_version for message in client.read("orders", "earliest")] == [0, 0, 1]


def test_a_stage_of_nothing_is_refused(client: oncemq.Client) -> None:
    with pytest.raises(errors.Malformed):
        client.stage("s", "orders", "", 0, [])


@on_event_loop
async def test_a_value_without_waiting_finds_a_new_version_at_the_second_try_at_the_latest(
    oncemq_broker: BrokerProcess,
) -> None:
    async with oncemq.aio.connect(oncemq_broker.url) as other:
        await other.create_topic("orders", retain_ms=10**9)
        await other.put_schema("orders", FIELDS)
        async with oncemq.aio.connect(oncemq_broker.url) as operator:
            await operator.put_schema("orders", FIELDS + ", tags: list<string>")
        stored = 0
        # At the first try, unless the broker needs a moment to answer.
        with contextlib.suppress(errors.SchemaMismatch):
            other.put_nowait("orders", {"id": 1, "tags": []})
            stored = 1
        await other.flush()
        assert (await other.put_nowait("orders", {"id": 1, "tags": []}).result()).offset == stored


def test_a_topic_that_was_created_again_has_another_schema(url: str, typed: oncemq.Client) -> None:
    with oncemq.connect(url) as other:
        other.put("orders", {"id": 1})
        typed.delete_topic("orders")
        typed.create_topic("orders", retain_ms=10**9)
        typed.put_schema("orders", "name: string")
        with pytest.raises(errors.SchemaMismatch, match="id: the schema has no such field"):
            other.put("orders", {"id": 2})
        other.put("orders", {"name": "x"})
    assert _values(typed) == [{"name": "x"}]


def test_without_a_check_values_are_free_and_objects_are_still_encoded(client: oncemq.Client) -> None:
    client.put_schema("orders", FIELDS, check="none")
    client.put("orders", b"anything")
    client.put("orders", Order(1))
    first, second = client.read("orders", "earliest")
    assert (first.schema_version, second.schema_version) == (0, 1)
    assert second.decode(Order) == Order(1)


@pytest.mark.parametrize("kind", [Order, OrderStruct, OrderModel, dict])
def test_values_are_read_as_objects(typed: oncemq.Client, kind: type[Any]) -> None:
    typed.put("orders", {"id": 1, "price": "9.50"})
    [message] = typed.read("orders", "earliest")
    found = message.decode(kind)
    assert isinstance(found, kind)
    plain = found if isinstance(found, dict) else {"id": found.id, "price": str(found.price)}
    assert plain == {"id": 1, "price": "9.50"}
    assert typed.decode(message, kind) == found


def test_a_subscription_returns_objects(url: str, client: oncemq.Client) -> None:
    client.put_schema("orders", json.dumps(AVRO))
    at = datetime.datetime(2026, 7, 31, 9, 30, tzinfo=datetime.UTC)
    orders = [AvroOrder(number, "FOOD", [], at, {}) for number in range(3)]
    with client.subscribe("orders", "eve") as subscription:
        client.put_many("orders", orders)
        assert list(subscription.objects(AvroOrder, timeout_s=0)) == orders

    async def main() -> list[AvroOrder]:
        async with oncemq.aio.connect(url) as other, await other.subscribe("orders", "bob", "earliest") as found:
            return [order async for order in found.objects(AvroOrder, timeout_s=0)]

    assert asyncio.run(main()) == orders


def test_a_value_that_is_no_such_object_is_named_with_its_offset(client: oncemq.Client) -> None:
    client.put("orders", b'{"id": "x"}')
    [message] = client.read("orders", "earliest")
    with pytest.raises(errors.SchemaMismatch, match="offset 0 of 'orders': the value can't be read as OrderStruct"):
        message.decode(OrderStruct)


class Line(msgspec.Struct):
    n: int
    hash: bytes


class AvroOrder(msgspec.Struct):
    id: int
    kind: str
    lines: list[Line]
    at: datetime.datetime
    tags: dict[str, str | None]
    price: decimal.Decimal | None = None


def test_avro_values_are_written_and_read_as_objects(url: str, client: oncemq.Client) -> None:
    client.put_schema("orders", json.dumps(AVRO), check="broker")
    at = datetime.datetime(2026, 7, 31, 9, 30, tzinfo=datetime.UTC)
    order = AvroOrder(5, "FOOD", [Line(1, b"abcd")], at, {"a": None}, decimal.Decimal("9.50"))
    client.put("orders", order)
    with oncemq.connect(url) as reader:
        [message] = reader.read("orders", "earliest")
        assert reader.decode(message, AvroOrder) == order
    with pytest.raises(errors.SchemaMismatch, match="not a record of the Avro definition"):
        client.put("orders", b"\xff")


def test_protobuf_values_are_written_and_read_as_objects(client: oncemq.Client) -> None:
    client.put_schema("orders", PROTO, message="Order", check="broker")
    client.put("orders", {"id": 5, "lines": [{"name": "a", "price": 2.5}]})
    [message] = client.read("orders", "earliest")
    found = client.decode(message, dict)
    assert (found["id"], found["lines"]) == (5, [{"name": "a", "price": 2.5}])


def test_dead_letters_are_put_again_as_their_schema_wants_it(typed: oncemq.Client) -> None:
    shared = typed.subscribe_shared("orders", "workers", tries_max=1, dead_topic="orders.dead", start="earliest")
    typed.put("orders", {"id": 1})
    task = shared.take(timeout_s=5)
    assert task is not None
    task.reject("broken")
    shared.close()
    assert typed.retry_dead_letters("orders.dead") == 1
    assert _values(typed) == [{"id": 1}, {"id": 1}]
    assert [message.schema_version for message in typed.read("orders", "earliest")] == [1, 1]


def test_an_outbox_checks_what_it_stores(typed: oncemq.Client, url: str, tmp_path: Path) -> None:
    with oncemq.connect(url, outbox=tmp_path / "box") as other:
        other.put("orders", Order(1))
        other.put_many("orders", [{"id": 2}, b'{"id": 3}'])
        other.put_nowait("orders", {"id": 4})
        for bad in (b"x", {"id": "x"}):
            with pytest.raises(errors.SchemaMismatch):
                other.put("orders", bad)
        other.flush()
    assert [value["id"] for value in _values(typed)] == [1, 2, 3, 4]


def test_the_asyncio_client_checks_in_every_way(typed: oncemq.Client, url: str) -> None:
    async def main() -> None:
        async with oncemq.aio.connect(url) as other:
            await other.put("orders", Order(1))
            await other.put_many("orders", [{"id": 2}])
            other.put_nowait("orders", Order(3))
            async with other.transaction() as transaction:
                transaction.put("orders", OrderModel(id=4))
            for bad in (b"x", {"id": "x"}):
                with pytest.raises(errors.SchemaMismatch):
                    await other.put("orders", bad)
                with pytest.raises(errors.SchemaMismatch):
                    other.put_nowait("orders", bad)
            found = await other.schema("orders")
            assert found is not None
            assert found.newest.version == 1
            assert await other.check_schema("orders", "id: int64 not null") == []
            assert await other.put_schema("orders", check="broker") == 1
        async with oncemq.aio.connect(url) as other:
            # The first message without waiting starts the lookup, and is checked when the reply is there.
            first = other.put_nowait("orders", b'{"id": 5}')
            await first.result()
            with pytest.raises(errors.SchemaMismatch):
                other.put_nowait("orders", b"x")
        async with oncemq.aio.connect(url) as other:
            # It is refused at once, or when its batch is made: that depends on when the reply comes.
            with pytest.raises(errors.SchemaMismatch):
                await other.put_nowait("orders", b"unchecked").result()

    asyncio.run(main())
    assert [value["id"] for value in _values(typed)] == [1, 2, 3, 4, 5]


def test_messages_without_waiting_stay_in_order_with_what_follows(typed: oncemq.Client, url: str) -> None:
    with oncemq.connect(url) as other:
        for number in range(5):
            other.put_nowait("orders", b'{"id": %d}' % number)
        other.put("orders", {"id": 5})
        other.put_nowait("orders", b'{"id": 6}')
        with other.transaction() as transaction:
            transaction.put("orders", {"id": 7})
    assert [value["id"] for value in _values(typed)] == list(range(8))


@pytest.mark.parametrize("journal", ["file"])
def test_schemas_survive_a_restart(tmp_path: Path, journal: str) -> None:
    url = f"{journal}:{tmp_path}/data"
    with oncemq.connect(url) as client:
        client.create_topic("orders", retain_ms=10**9)
        client.put_schema("orders", FIELDS, compatibility="full")
        client.put("orders", {"id": 1})
    with oncemq.connect(url) as client:
        found = client.schema("orders")
        assert found is not None
        assert (found.compatibility, found.newest.schema.definition) == ("full", FIELDS)
        [message] = client.read("orders", "earliest")
        assert message.schema_version == 1
        assert client.put_schema("orders", FIELDS + ", tags: list<string>") == 2
