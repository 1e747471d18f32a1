"""A reliable subscriber's place: what acks do to it, and how it is mended when the broker knows better."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import pytest

from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.subscribers.keepalive import Tending
from oncemq.gateways.push.subscribers.subscriber_cursor import Place
from oncemq.protocol import errors
from oncemq.protocol.commands import START_EARLIEST, DeleteTopic, Open, Operation
from oncemq.protocol.replies import Reply
from tests.gateways.push.in_memory import SETTINGS, following, in_memory, make, place_of, put, seek_earliest


def place_with(sent: int) -> Place:
    link: Any = None
    return Place(link, Counters(), following("orders", position=sent), "kitchen")


# Acks.


def test_acks_in_any_order_join_up() -> None:
    place = place_with(10)
    place.note([3, 1])
    assert (place.acked, place.has(1), place.has(0)) == (0, True, False)
    place.note([0])
    assert place.acked == 2
    place.note([0, 1], upto=3)
    assert place.acked == 4
    place.note([9, 8])
    place.pass_over(8)
    assert place.acked == 10


def test_an_ack_of_what_was_not_sent_changes_nothing() -> None:
    place = place_with(2)
    for offsets, upto in (([2], 0), ([0, 5], 0), ([], 3)):
        with pytest.raises(errors.OffsetOutOfRange):
            place.note(offsets, upto)
    assert (place.acked, place.has(0)) == (0, False)


def test_acks_that_run_ahead_are_held_up_to_a_bound() -> None:
    place = place_with(100_000)
    for first in range(1, 60_001, 10_000):
        place.note(range(first, first + 10_000))
    assert (place.has(10_000), place.has(10_001)) == (True, False)
    place.note([0])
    assert place.acked == 10_001


def test_acks_beside_one_that_joins_up_are_held_up_to_the_same_bound() -> None:
    place = place_with(100_000)
    for first in range(100, 60_100, 20_000):
        place.note([place.acked, *range(first, first + 19_998, 2)])
    assert sum(map(place.has, range(place.acked, 100_000))) == 10_000


def test_who_says_hello_holds_nothing_but_what_is_acknowledged_in_order() -> None:
    place = place_with(3)
    place.note([0, 2])
    place.is_back()
    assert (place.has(0), place.has(2), place.missed_below) == (True, False, 3)


# What the broker knows.


def test_of_a_topic_that_was_made_again_everything_is_sent() -> None:
    async def work(link: Link) -> None:
        place = place_of(link)
        await make(link, "orders", b"old")
        await place.look()
        assert place.acked == 1
        former_id = place.following.topic_id = place.topic_id
        await link.operate(DeleteTopic("orders"))
        await make(link, "orders", b"new", b"newer")
        place.following.topic_id = former_id + 1
        assert place.is_in_doubt
        await place.look()
        assert not place.is_in_doubt
        assert place.topic_id != former_id
        assert [message.value for message in await place.read()] == [b"new", b"newer"]
        assert place.is_due(math.inf, 0.0)

    in_memory(work)


def test_a_seek_shows_when_the_broker_is_asked() -> None:
    async def work(link: Link) -> None:
        place = place_of(link)
        await make(link, "orders", b"0", b"1")
        await place.look()
        await seek_earliest(link, "orders")
        assert not place.is_due(math.inf, 0.0)
        await place.look()
        assert (place.acked, place.is_due(math.inf, 0.0)) == (0, True)

    in_memory(work)


def test_a_place_that_somebody_else_took_over_is_taken_back_by_hello_alone() -> None:
    async def work(link: Link) -> None:
        place = place_of(link)
        await place.look()
        await link.operate(Open("orders", "kitchen"))
        await place.look()
        with pytest.raises(errors.Fenced):
            place.check_open()
        await place.look()
        assert (place.is_open, place.is_lost) == (False, True)
        await place.look(take_back=True)
        assert (place.is_open, place.is_lost) == (True, False)

    in_memory(work)


def test_while_the_feed_stands_still_the_broker_is_asked_for_what_is_new() -> None:
    async def work(link: Link) -> None:
        place = place_of(link)
        await place.look()
        place.following.topic_id = place.topic_id
        await put(link, "orders", b"0", b"1")
        await place.look()
        assert (place.end_offset, place.is_due(math.inf, 0.0)) == (2, True)

    in_memory(work)


def test_a_place_that_could_not_be_opened_is_opened_later() -> None:
    class Shaky(Link):
        failures_left = 1

        async def operate(self, operation: Operation, payload: Any = None) -> Reply:
            if isinstance(operation, Open) and self.failures_left:
                self.failures_left -= 1
                raise errors.BrokerAway("for a moment")
            return await super().operate(operation, payload)

    async def work(_: Link) -> None:
        link = Shaky(["memory:shaky"], label="test")
        tending, place = Tending(SETTINGS, Counters()), place_of(link)
        for is_open in (False, True):
            tending.look_after(place, math.inf)
            # It ends when what is under way has; then nothing is.
            await asyncio.gather(*tending._looking.values())
            assert place.is_open is is_open
            with contextlib.nullcontext() if is_open else pytest.raises(errors.Busy):
                place.check_open()
        link.close()

    in_memory(work)


def test_a_refusal_that_comes_after_the_place_was_opened_anew_is_old() -> None:
    class Late(Link):
        async def ask(self, command: Any, payload: Any = None, *, give_up_ms: float = 0.0) -> Any:
            place.epoch += 1
            raise errors.Fenced("somebody else opened it")

    async def work(_: Link) -> None:
        place._link = Late(["memory:late"], label="test")
        with pytest.raises(errors.Fenced):
            await place.read()
        place._link.close()

    place = place_with(1)
    place.is_open = True
    in_memory(work)
    assert (place.is_open, place.is_lost) == (True, False)


def test_a_topic_that_is_deleted_while_its_place_is_opened_is_no_refusal() -> None:
    class Racing(Link):
        async def operate(self, operation: Operation, payload: Any = None) -> Reply:
            reply = await super().operate(operation, payload)
            if isinstance(operation, Open):
                await super().operate(DeleteTopic("orders"))
            return reply

    async def work(_: Link) -> None:
        link = Racing(["memory:racing"], label="test")
        place = place_of(link)
        with pytest.raises(errors.Busy):
            await place.look()
        assert (place.is_open, place.is_lost) == (False, False)
        link.close()

    in_memory(work)


def test_an_ended_place_is_not_opened_again() -> None:
    async def work(link: Link) -> None:
        place = place_of(link, start=START_EARLIEST)
        await place.look()
        await place.end()
        await place.look()
        assert not place.is_open
        with pytest.raises(errors.TopicUnknown):
            await link.operate(Open("orders", "kitchen"))

    in_memory(work)
