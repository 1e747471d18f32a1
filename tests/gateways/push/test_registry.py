"""The registry has all data of reliable subscribers: the next gateway continues after a crash at any point."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncemq.gateways.link import Link
from oncemq.gateways.push.messages import AckReceived, Goodbye, Hello
from oncemq.gateways.push.subscribers.registry import NAMESPACE, decode_registered, register, subscribers_of
from oncemq.gateways.push.subscribers.subscriber import Subscriber
from oncemq.gateways.push.subscribers.subscribers import ReliableSubscribers
from oncemq.protocol import errors
from oncemq.protocol.commands import START_NEW, DeleteTopic, Operation, Read, RegistrySet, Subscribe
from oncemq.protocol.replies import GetReply, Reply, expect
from tests.gateways.push.in_memory import cursor_of, in_memory, make, put, reliable_of, until

_ADDRESS = "tcp://127.0.0.1:9"


def hello(*topics: str, **fields: Any) -> Hello:
    return Hello(subscriber="kitchen", topics=topics, address=_ADDRESS, **fields)


def ack(offset: int, topic_id: int = 0) -> AckReceived:
    return AckReceived(subscriber="kitchen", topic="orders", offset=offset, topic_id=topic_id)


async def position_after_restart(link: Link) -> int:
    """Return the position at which the next gateway continues."""
    reliable = await resumed(link)
    cursor = reliable._subscribers["", "kitchen"].cursors["orders"]
    running = asyncio.ensure_future(reliable.run())
    await until(lambda: cursor.is_open, "its cursor is opened")
    running.cancel()
    await reliable.stop()
    return cursor.acked


async def resumed(link: Link) -> ReliableSubscribers:
    reliable = reliable_of(link)
    await reliable.resume()
    return reliable


def test_of_a_topic_that_was_made_again_meanwhile_everything_is_sent() -> None:
    async def work(link: Link) -> None:
        await make(link, "orders", b"old")
        welcome = await (await resumed(link)).hello(hello("orders"))
        assert welcome.topics == {"orders": 1}
        assert await position_after_restart(link) == 1
        await link.operate(DeleteTopic("orders"))
        await make(link, "orders", b"new", b"newer")
        assert await position_after_restart(link) == 0

    in_memory(work)


@pytest.mark.parametrize(("start", "position"), [("earliest", 0), ("new", 2)])
def test_the_start_is_remembered_if_the_gateway_dies_before_it_subscribes(start: str, position: int) -> None:
    class Dying(Link):
        async def operate(self, operation: Operation, payload: Any = None) -> Reply:
            if isinstance(operation, Subscribe):
                raise errors.BrokerAway("this is where it dies")
            return await super().operate(operation, payload)

    async def work(link: Link) -> None:
        await make(link, "orders", b"0", b"1")
        dying = Dying(link._session._settings.urls, label="dying")
        with pytest.raises(errors.BrokerAway):
            await (await resumed(dying)).hello(hello("orders", start=start))
        dying.close()
        assert await position_after_restart(link) == position

    in_memory(work)


def test_an_entry_of_an_older_gateway_is_read() -> None:
    async def work(link: Link) -> None:
        await make(link, "orders", b"0")
        await link.operate(RegistrySet(NAMESPACE, "push/subscriber/kitchen", b'{"address":"x","topics":["orders"]}'))
        assert await position_after_restart(link) == 0

    in_memory(work)


def test_a_thousand_topics_with_the_longest_names_are_remembered_and_forgotten() -> None:
    async def work(link: Link) -> None:
        subscriber = Subscriber("kitchen", link)
        topics = [f"{number:04}".ljust(255, '"') for number in range(1_000)]
        for topic in topics:
            subscriber.cursors[topic] = cursor_of(link, topic)
        await register(link, "push", "", "kitchen", subscriber.entries(_ADDRESS), subscriber.registered)
        found = {number: decode_registered(value) async for _, _, number, value in subscribers_of(link, "push")}
        assert found == subscriber.registered
        assert sorted(topic for entry in found.values() for topic in entry.topics) == topics
        assert found[0].address == _ADDRESS
        subscriber.cursors.clear()
        await register(link, "push", "", "kitchen", subscriber.entries(""), subscriber.registered)
        assert [entry async for entry in subscribers_of(link, "push")] == []

    in_memory(work)


def test_a_goodbye_that_was_interrupted_can_be_repeated() -> None:
    class Interrupted(Link):
        is_away = False

        async def operate(self, operation: Operation, payload: Any = None) -> Reply:
            if self.is_away and isinstance(operation, RegistrySet):
                raise errors.BrokerAway("for a moment")
            return await super().operate(operation, payload)

    async def work(_: Link) -> None:
        link = Interrupted(["memory:interrupted"], label="test")
        reliable = await resumed(link)
        await reliable.hello(hello("orders"))
        link.is_away = True
        with pytest.raises(errors.BrokerAway):
            await reliable.goodbye(Goodbye(subscriber="kitchen"))
        link.is_away = False
        await reliable.goodbye(Goodbye(subscriber="kitchen"))
        assert [entry async for entry in subscribers_of(link, "push")] == []
        link.close()

    in_memory(work)


def test_an_ack_for_a_recreated_topic_reopens_the_cursor_and_one_for_the_old_topic_is_refused() -> None:
    async def work(link: Link) -> None:
        reliable = await resumed(link)
        await reliable.hello(hello("orders"))
        former_id = reliable._subscribers["", "kitchen"].cursors["orders"].topic_id
        await link.operate(DeleteTopic("orders"))
        await make(link, "orders", b"new")
        topic_id = expect((await link.ask(Read("orders", START_NEW, 0)))[0], GetReply).topic_id
        assert (await reliable.ack(ack(0, topic_id))).acked == 1
        for wrong_id in (former_id, topic_id + 1):
            with pytest.raises(errors.TopicGone):
                await reliable.ack(ack(0, wrong_id))

    in_memory(work)


def test_an_ack_waits_until_the_cursor_is_open() -> None:
    async def work(link: Link) -> None:
        await (await resumed(link)).hello(hello("orders"))
        await put(link, "orders", b"0")
        reliable = await resumed(link)
        with pytest.raises(errors.Busy):
            await reliable.ack(ack(0))
        await reliable.hello(hello())
        assert (await reliable.ack(ack(0))).acked == 1

    in_memory(work)
