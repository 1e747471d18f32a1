"""A reliable subscriber's cursor: acks, and how it is opened again when the broker's state has changed."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import pytest

from oncemq.client.consumer.owned_subscription import OwnedSubscription
from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.subscribers.keepalive import Keepalive
from oncemq.gateways.push.subscribers.subscriber_cursor import SubscriberCursor
from oncemq.gateways.subscription import OpenSubscription
from oncemq.protocol import errors
from oncemq.protocol.commands import START_EARLIEST, DeleteTopic, Open, Operation
from oncemq.protocol.replies import Reply
from tests.gateways.push.in_memory import SETTINGS, cursor_of, follower, in_memory, make, put, seek_earliest


def cursor_with(sent: int) -> SubscriberCursor:
    link: Any = None
    return SubscriberCursor(link, Counters(), follower("orders", position=sent), "kitchen")


# Acks.


def test_acks_in_any_order_join_up() -> None:
    cursor = cursor_with(10)
    cursor.note_acks([3, 1])
    assert (cursor.acked, cursor.has_ack(1), cursor.has_ack(0)) == (0, True, False)
    cursor.note_acks([0])
    assert cursor.acked == 2
    cursor.note_acks([0, 1], upto=3)
    assert cursor.acked == 4
    cursor.note_acks([9, 8])
    cursor.skip_to(8)
    assert cursor.acked == 10


def test_an_ack_of_what_was_not_sent_changes_nothing() -> None:
    cursor = cursor_with(2)
    for offsets, upto in (([2], 0), ([0, 5], 0), ([], 3)):
        with pytest.raises(errors.OffsetOutOfRange):
            cursor.note_acks(offsets, upto)
    assert (cursor.acked, cursor.has_ack(0)) == (0, False)


def test_acks_that_run_ahead_are_held_up_to_a_bound() -> None:
    cursor = cursor_with(100_000)
    for first in range(1, 60_001, 10_000):
        cursor.note_acks(range(first, first + 10_000))
    assert (cursor.has_ack(10_000), cursor.has_ack(10_001)) == (True, False)
    cursor.note_acks([0])
    assert cursor.acked == 10_001


def test_acks_beside_one_that_joins_up_are_held_up_to_the_same_bound() -> None:
    cursor = cursor_with(100_000)
    for first in range(100, 60_100, 20_000):
        cursor.note_acks([cursor.acked, *range(first, first + 19_998, 2)])
    assert sum(map(cursor.has_ack, range(cursor.acked, 100_000))) == 10_000


def test_who_says_hello_holds_nothing_but_what_is_acknowledged_in_order() -> None:
    cursor = cursor_with(3)
    cursor.note_acks([0, 2])
    cursor.restart()
    assert (cursor.has_ack(0), cursor.has_ack(2), cursor.missed_below) == (True, False, 3)


# The subscription at the broker.


def test_of_a_topic_that_was_made_again_everything_is_sent() -> None:
    async def work(link: Link) -> None:
        cursor = cursor_of(link)
        await make(link, "orders", b"old")
        await cursor.check()
        assert cursor.acked == 1
        former_id = cursor.follower.topic_id = cursor.topic_id
        await link.operate(DeleteTopic("orders"))
        await make(link, "orders", b"new", b"newer")
        cursor.follower.topic_id = former_id + 1
        assert cursor.is_in_doubt
        await cursor.check()
        assert not cursor.is_in_doubt
        assert cursor.topic_id != former_id
        assert [message.value for message in await cursor.read()] == [b"new", b"newer"]
        assert cursor.is_due(math.inf, 0.0)

    in_memory(work)


def test_a_seek_shows_when_the_broker_is_asked() -> None:
    async def work(link: Link) -> None:
        cursor = cursor_of(link)
        await make(link, "orders", b"0", b"1")
        await cursor.check()
        await seek_earliest(link, "orders")
        assert not cursor.is_due(math.inf, 0.0)
        await cursor.check()
        assert (cursor.acked, cursor.is_due(math.inf, 0.0)) == (0, True)

    in_memory(work)


def test_only_hello_takes_back_a_cursor_that_another_consumer_took_over() -> None:
    async def work(link: Link) -> None:
        cursor = cursor_of(link)
        await cursor.check()
        await link.operate(Open("orders", "kitchen"))
        await cursor.check()
        with pytest.raises(errors.Fenced):
            cursor.refuse_unless_open()
        await cursor.check()
        assert (cursor.is_open, cursor.is_fenced) == (False, True)
        await cursor.check(take_back=True)
        assert (cursor.is_open, cursor.is_fenced) == (True, False)

    in_memory(work)


def test_while_the_feed_stands_still_the_broker_is_asked_for_what_is_new() -> None:
    async def work(link: Link) -> None:
        cursor = cursor_of(link)
        await cursor.check()
        cursor.follower.topic_id = cursor.topic_id
        await put(link, "orders", b"0", b"1")
        await cursor.check()
        assert (cursor.end_offset, cursor.is_due(math.inf, 0.0)) == (2, True)

    in_memory(work)


def test_a_cursor_that_could_not_be_opened_is_opened_later() -> None:
    class Shaky(Link):
        failures_left = 1

        async def operate(self, operation: Operation, payload: Any = None) -> Reply:
            if isinstance(operation, Open) and self.failures_left:
                self.failures_left -= 1
                raise errors.BrokerAway("for a moment")
            return await super().operate(operation, payload)

    async def work(_: Link) -> None:
        link = Shaky(["memory:shaky"], label="test")
        keepalive, cursor = Keepalive(SETTINGS, Counters()), cursor_of(link)
        for is_open in (False, True):
            keepalive.check_if_due(cursor, math.inf)
            # It returns when no check is running.
            await asyncio.gather(*keepalive._checks.values())
            assert cursor.is_open is is_open
            with contextlib.nullcontext() if is_open else pytest.raises(errors.Busy):
                cursor.refuse_unless_open()
        link.close()

    in_memory(work)


def test_a_refusal_of_a_former_opening_is_ignored() -> None:
    class Late(Link):
        async def ask(self, command: Any, payload: Any = None, *, give_up_ms: float = 0.0) -> Any:
            cursor.epoch += 1
            raise errors.Fenced("somebody else opened it")

    async def work(_: Link) -> None:
        link = Late(["memory:late"], label="test")
        cursor._subscription = OpenSubscription(link, OwnedSubscription("orders", "kitchen", 7, 0))
        with pytest.raises(errors.Fenced):
            await cursor.read()
        link.close()

    cursor = cursor_with(1)
    cursor.is_open = True
    in_memory(work)
    assert (cursor.is_open, cursor.is_fenced) == (True, False)


def test_a_topic_that_is_deleted_while_its_cursor_is_opened_is_no_refusal() -> None:
    class Racing(Link):
        async def operate(self, operation: Operation, payload: Any = None) -> Reply:
            reply = await super().operate(operation, payload)
            if isinstance(operation, Open):
                await super().operate(DeleteTopic("orders"))
            return reply

    async def work(_: Link) -> None:
        link = Racing(["memory:racing"], label="test")
        cursor = cursor_of(link)
        with pytest.raises(errors.Busy):
            await cursor.check()
        assert (cursor.is_open, cursor.is_fenced) == (False, False)
        link.close()

    in_memory(work)


def test_a_deleted_cursor_is_not_opened_again() -> None:
    async def work(link: Link) -> None:
        cursor = cursor_of(link, start=START_EARLIEST)
        await cursor.check()
        await cursor.delete()
        await cursor.check()
        assert not cursor.is_open
        with pytest.raises(errors.TopicUnknown):
            await link.operate(Open("orders", "kitchen"))

    in_memory(work)
