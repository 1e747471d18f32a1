"""Operations that both clients have, on an event loop: transactions, patterns, seek, filters, the outbox."""

from __future__ import annotations

from pathlib import Path

import pytest

import oncemq
import oncemq.aio
from tests.client.event_loop import on_event_loop, wait_until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory:{tmp_path.name}"


@on_event_loop
async def test_a_transaction_is_all_or_nothing(url: str) -> None:
    async with oncemq.aio.connect(url) as client:
        await client.create_topic("target", retain_ms=10**9)
        source = await client.subscribe("source", "copier", auto_ack=False)
        await client.put_many("source", ["a", "b", "c"])
        with pytest.raises(KeyError):
            async with client.transaction() as transaction:
                transaction.put("target", "never")
                await source.get_many(2)
                transaction.ack(source)
                raise KeyError
        async with client.transaction() as transaction:
            for message in await source.get_many(10):
                transaction.put("target", message.value)
            transaction.ack(source)
        assert [message.text async for message in client.read("target")] == ["a", "b", "c"]
        assert (await client.subscriptions("source"))[0].lag == 0


@on_event_loop
async def test_messages_that_were_read_before_a_failed_block_are_delivered_again(url: str) -> None:
    async with oncemq.aio.connect(url) as client:
        source = await client.subscribe("source", "copier", auto_ack=False)
        await client.put_many("source", ["a", "b", "c"])
        await source.get_many(2)
        with pytest.raises(KeyError):
            async with client.transaction():
                raise KeyError
        assert [message.text for message in await source.get_many(10)] == ["a", "b", "c"]


@on_event_loop
async def test_patterns_seek_and_filters_work_alike(url: str) -> None:
    async with oncemq.aio.connect(url) as client:
        await client.create_topic("orders.eu", retain_ms=10**9)
        async with await client.subscribe_pattern("orders.*", "audit", filter={"kind": "big"}) as audit:
            for number in range(4):
                headers = {"kind": "big" if number % 2 else "small"}
                await client.put("orders.eu", str(number), headers=headers)
            assert [message.text async for message in audit.messages(timeout_s=0.05)] == ["1", "3"]
            await audit.seek("earliest")
            message = await audit.get(timeout_s=5)
            assert message is not None
            assert message.text == "1"
        kitchen = await client.subscribe("orders.eu", "kitchen", start="earliest")
        assert (await kitchen.get_many(10))[-1].text == "3"
        assert await client.seek("orders.eu", "kitchen", 2) == 2
        assert [message.text async for message in kitchen.messages(timeout_s=0.05)] == ["2", "3"]


@on_event_loop
async def test_an_outbox_outlives_its_client(url: str, tmp_path: Path) -> None:
    async with oncemq.aio.connect("tcp://127.0.0.1:9", outbox=tmp_path / "outbox") as client:
        ticket = await client.put("orders", "one", create=True)
        assert client.pending == 1
    async with oncemq.aio.connect(url) as reader:
        await reader.create_topic("orders", retain_ms=10**9)
        async with oncemq.aio.connect(url, outbox=tmp_path / "outbox") as client:
            # It is sent without a call.
            await wait_until(lambda: client.pending == 0)
            assert await client.stored(ticket.numbers[0])
            await client.put("nowhere", "refused")
            with pytest.raises(oncemq.TopicUnknown):
                await client.flush()
            [refusal] = await client.refusals()
            await client.seen(refusal)
            await client.flush()
        assert [message.text async for message in reader.read("orders")] == ["one"]


@on_event_loop
async def test_a_subscription_can_have_a_limit_of_idle_time(url: str) -> None:
    async with oncemq.aio.connect(url) as client:
        assert (await client.subscribe("orders", "guest", idle_s=60.0)).created
        assert (await client.subscribe_pattern("#", "guest", idle_s=60.0)).created
        with pytest.raises(oncemq.SubscriptionExists):
            await client.subscribe("orders", "guest")
        with pytest.raises(oncemq.SubscriptionExists):
            await client.subscribe_pattern("#", "guest")
