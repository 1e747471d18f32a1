"""The asyncio client's push consumer."""

from __future__ import annotations

import asyncio

import pytest

import oncemq.aio
from oncemq.protocol import errors
from oncemq.protocol.message import Message
from oncemq.testing.broker_process import BrokerProcess
from tests.client.event_loop import on_event_loop, wait_until
from tests.gateways.push.lossy import LossyFeed
from tests.gateways.push.processes import GatewayProcess

_COUNT = 300


async def take(subscription: oncemq.aio.Subscription, count: int) -> list[Message]:
    found = []
    async for message in subscription.messages(timeout_s=30):
        found.append(message)
        if len(found) == count:
            break
    return found


async def put_slowly(client: oncemq.aio.Client, topic: str) -> None:
    for number in range(0, _COUNT, 3):
        await client.put_many(topic, [b"%d" % (number + index) for index in range(3)])


@on_event_loop
async def test_messages_come_by_the_feed_once_and_in_order(push: GatewayProcess, push_broker: BrokerProcess) -> None:
    async with oncemq.aio.connect(push_broker.url) as client:
        subscription = await client.push("aio.push.whole", "reader", feed=push.settings.feed)
        assert await subscription.get(timeout_s=0) is None

        async def is_followed() -> bool:
            return len(await client.subscriptions("aio.push.whole")) == 2

        await wait_until(is_followed)
        _, found = await asyncio.gather(put_slowly(client, "aio.push.whole"), take(subscription, _COUNT))
        assert [message.value for message in found] == [b"%d" % number for number in range(_COUNT)]
        assert subscription.pushed > 0
        assert await subscription.get(timeout_s=0) is None
        await subscription.close()
        acked = {each.subscriber: each.acked for each in await client.subscriptions("aio.push.whole")}
        assert acked["reader"] == _COUNT


@on_event_loop
async def test_what_the_feed_loses_comes_from_the_broker(push: GatewayProcess, push_broker: BrokerProcess) -> None:
    lossy = LossyFeed(push.settings.feed, b"\x01aio.push.lossy\0", seed=1)
    async with oncemq.aio.connect(push_broker.url) as client:
        subscription = await client.push("aio.push.lossy", "reader", feed=lossy.address)
        _, found = await asyncio.gather(put_slowly(client, "aio.push.lossy"), take(subscription, _COUNT))
        assert [message.value for message in found] == [b"%d" % number for number in range(_COUNT)]
    lossy.close()


@on_event_loop
async def test_a_task_that_waits_for_the_feed_is_woken_by_a_cancel_and_by_the_end(
    push: GatewayProcess, push_broker: BrokerProcess
) -> None:
    client = await oncemq.aio.connect(push_broker.url)
    subscription = await client.push("aio.push.end", "reader", feed=push.settings.feed)
    assert await subscription.get(timeout_s=0) is None
    waiting = asyncio.ensure_future(subscription.get(timeout_s=None))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await client.put("aio.push.end", b"one")
    message = await subscription.get(timeout_s=30)
    assert message is not None
    assert message.value == b"one"
    waiting = asyncio.ensure_future(subscription.get(timeout_s=None))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(errors.ClientClosed):
        await waiting
