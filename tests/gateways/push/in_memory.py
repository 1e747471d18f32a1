"""The reliable part of the gateway without sockets: a broker in memory, and a feed that sends nothing."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from oncemq.client.producer.encoding import make_put
from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.subscriber_cursor import SubscriberCursor
from oncemq.gateways.push.subscribers.subscribers import ReliableSubscribers
from oncemq.protocol.commands import START_EARLIEST, START_NEW, CreateTopic, Seek

DEADLINE_S = 30.0
SETTINGS = PushSettings(retransmit_ms=20, pause_ms_max=60_000)


def in_memory(work: Callable[[Link], Awaitable[None]]) -> None:
    """Run a test with a broker of its own."""

    async def run() -> None:
        link = Link([f"memory:{uuid.uuid4().hex}"], label="test")
        try:
            await work(link)
        finally:
            link.close()

    asyncio.run(run())


class Feed:
    """A feed for cursors that sends and follows nothing."""

    def __init__(self) -> None:
        self.followers: dict[str, Any] = {}

    def hold(self, topic: str, holder: object, caller: str = "") -> Any:
        return self.followers.setdefault(topic, follower(topic))

    def release(self, topic: str, holder: object, user: str = "") -> None: ...


def follower(topic: str, **fields: Any) -> Any:
    state = {"topic": topic, "topic_id": 0, "position": -1, "is_live": False, "sent_before": lambda at_s: -1}
    return SimpleNamespace(**(state | fields))


def reliable_of(link: Link) -> ReliableSubscribers:
    feed: Any = Feed()
    return ReliableSubscribers(SETTINGS, link, feed, Counters())


def cursor_of(link: Link, topic: str = "orders", *, start: int = START_NEW) -> SubscriberCursor:
    cursor = SubscriberCursor(link, Counters(), follower(topic), "kitchen", start)
    cursor.is_registered = True
    return cursor


async def make(link: Link, topic: str, *contents: bytes) -> None:
    await link.operate(CreateTopic(topic, retain_ms=3_600_000))
    await put(link, topic, *contents)


async def put(link: Link, topic: str, *contents: bytes) -> None:
    if contents:
        operation, payload = make_put(topic, False, contents)
        await link.operate(operation, payload)


async def seek_earliest(link: Link, topic: str) -> None:
    await link.operate(Seek(topic, "kitchen", START_EARLIEST))


async def until(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s, f"not in time: {what}"
        await asyncio.sleep(0.005)
