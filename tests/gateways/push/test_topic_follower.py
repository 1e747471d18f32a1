"""Following topics, where the broker is unreachable, others interfere, or listeners are slow."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed import feed as feed_module
from oncemq.gateways.push.feed import topic_follower as following_module
from oncemq.gateways.push.feed.feed import Feed
from oncemq.gateways.push.feed.feed_socket import SLOT_BYTES
from oncemq.gateways.push.settings import PushSettings
from oncemq.protocol import errors
from oncemq.protocol.commands import START_EARLIEST, START_NEW
from tests.gateways.push.fakes import FakeLink, until

_numbers = itertools.count()


def settings_within(**changes: Any) -> PushSettings:
    """Settings with an in-process address, where a sent message arrives at once."""
    return PushSettings(feed=f"inproc://follower-{next(_numbers)}", **changes)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "_PAUSE_S", 0.01)
    monkeypatch.setattr(following_module, "_PAUSE_S", 0.01)


@asynccontextmanager
async def following_feed(link: FakeLink, **changes: Any) -> AsyncIterator[Feed]:
    feed = Feed(settings_within(unfollow_ms=0, **changes), cast(Link, link), Counters(), take_back_s=0.01)
    try:
        yield feed
    finally:
        await feed.stop()


class Ear:
    """A SUB socket with a short queue."""

    def __init__(self, address: str, prefix: bytes, messages_max: int = 1) -> None:
        context: Any = zmq.Context.instance()
        self.socket = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, messages_max)
        self.socket.setsockopt(zmq.SUBSCRIBE, prefix)
        self.socket.connect(address)

    def heard(self) -> Iterator[list[bytes]]:
        while self.socket.poll(0):
            yield self.socket.recv_multipart()

    def close(self) -> None:
        self.socket.close(0)


def test_listeners_may_come_and_go_while_the_broker_is_away() -> None:
    async def come_and_go() -> None:
        link = FakeLink()
        async with following_feed(link) as feed:
            first = feed.hold("t", "first")
            await until(lambda: first.is_live, "it is followed")
            link.is_away = True
            for holder in ("first", "second", "third"):
                feed.hold("t", holder)
                feed.release("t", holder)
                feed.maintain()
                assert not feed.topics_count
            last = feed.hold("t", "last")
            await until(lambda: feed.counters["feed_waits"] > 3, "its end is tried again")
            link.is_away = False
            await until(lambda: last.is_live and link.is_subscribed, "it is followed again")

    asyncio.run(come_and_go())


def test_what_somebody_else_took_is_taken_back() -> None:
    async def be_fenced() -> None:
        link = FakeLink()
        async with following_feed(link) as feed:
            follower = feed.hold("t", "me")
            for epoch in (1, 2, 3):
                await until(lambda: follower.is_live and link.epoch == epoch, "it is followed")  # noqa: B023
                link.error = errors.SubscriptionFenced("another one consumes it")
                await until(lambda: not follower.is_live, "it notices")
            assert feed.counters["feed_fenced"] == 3

    asyncio.run(be_fenced())


def test_what_has_ended_by_mistake_begins_again() -> None:
    async def end() -> None:
        link = FakeLink()
        async with following_feed(link) as feed:
            follower = feed.hold("t", "me")
            follower.task.cancel()
            await asyncio.wait([follower.task])
            feed.maintain()
            await until(lambda: follower.is_live, "it is followed")

    asyncio.run(end())


def test_a_topic_that_was_made_again_is_followed_from_its_first_message() -> None:
    async def delete() -> None:
        link = FakeLink()
        async with following_feed(link) as feed:
            follower = feed.hold("t", "me")
            await until(lambda: follower.is_live, "it is followed")
            link.error = errors.TopicGone("it was deleted")
            await until(lambda: link.starts == [START_NEW, START_EARLIEST], "it is followed again")

    asyncio.run(delete())


def test_whoever_was_one_too_many_is_heard_when_there_is_room() -> None:
    async def make_room() -> None:
        link = FakeLink()
        async with following_feed(link, topics_max=1) as feed:
            feed.hold("t", "me")
            ear = Ear(feed.settings.feed, b"u\0")
            await until(lambda: feed.counters["feed_topics_refused"], "it is refused")
            feed.release("t", "me")
            feed.maintain()
            await until(lambda: list(ear.heard()), "it hears")
            ear.close()

    asyncio.run(make_room())


def test_marks_reach_back_as_far_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: now_s, time_ns=time.time_ns)

    async def mark() -> None:
        nonlocal now_s
        async with following_feed(FakeLink(), retransmit_ms=3_000) as feed:
            follower = feed.hold("t", "me")
            monkeypatch.setattr(following_module, "time", clock)
            for position in range(10_000):
                now_s += 0.1
                follower.position = position
                follower.mark()
            assert len(follower._marks) < 100
            assert follower.sent_before(now_s - 3.0) in (9968, 9969)

    asyncio.run(mark())


def test_a_subscriber_that_does_not_read_keeps_no_heartbeat_from_others() -> None:
    async def get_stuck() -> None:
        async with following_feed(FakeLink(), feed_messages_max=5) as feed:
            stuck, healthy = Ear(feed.settings.feed, b"t\0"), Ear(feed.settings.feed, b"t\0", 100)
            follower = feed.hold("t", "me")
            await until(lambda: list(stuck.heard()) and list(healthy.heard()), "both listen")
            while follower.send_heartbeat():
                pass
            list(healthy.heard())
            await feed.retry_heartbeats(feed.maintain())
            assert [frames[1].split()[0] for frames in healthy.heard()] == [b"next"]
            stuck.close()
            healthy.close()

    asyncio.run(get_stuck())


@pytest.mark.parametrize("prefix", [b"t\0", b"\x01t\0"])
def test_large_messages_fill_a_queue_by_their_size(prefix: bytes) -> None:
    async def fill() -> None:
        link, slots = FakeLink(), 20
        content = bytes(4 * SLOT_BYTES)
        for _ in range(slots):
            link.add(content)
        async with following_feed(link, feed_messages_max=slots) as feed:
            ear = Ear(feed.settings.feed, prefix)
            follower = feed.hold("t", "me")
            await until(lambda: follower.position == slots, "all were sent")
            heard = sum(len(frame) for frames in ear.heard() for frame in frames)
            assert len(content) < heard < slots * SLOT_BYTES + 2 * len(content)
            assert feed.counters["feed_overflows"]
            ear.close()

    asyncio.run(fill())
