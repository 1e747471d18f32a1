"""Stored messages that can't be decoded, over the push gateway."""

from __future__ import annotations

import asyncio

from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.subscribers.subscriber_cursor import SubscriberCursor
from oncemq.protocol.commands import START_EARLIEST, Put
from tests.client.test_undecodable import BAD, envelope
from tests.gateways.push.fakes import FakeLink, until
from tests.gateways.push.in_memory import follower, in_memory, make, put
from tests.gateways.push.test_topic_follower import Ear, following_feed


def test_a_retransmission_skips_and_counts_them() -> None:
    async def read(link: Link) -> None:
        await make(link, "orders", b"before")
        await link.operate(Put("orders", envelope(BAD)), BAD)
        await put(link, "orders", b"behind")
        counters = Counters()
        cursor = SubscriberCursor(link, counters, follower("orders"), "kitchen", START_EARLIEST)
        cursor.is_registered = True
        await cursor.check()
        assert [message.value for message in await cursor.read()] == [b"before"]
        cursor.skip_to(1)
        assert [(message.offset, message.value) for message in await cursor.read()] == [(2, b"behind")]
        assert (cursor.acked, counters["feed_undecodable"]) == (2, 1)

    in_memory(read)


def test_the_feed_skips_and_counts_them() -> None:
    async def listen() -> None:
        link = FakeLink()
        async with following_feed(link) as feed:
            ear = Ear(feed.socket.addresses[0], b"t\0", 100)
            await until(lambda: link.is_subscribed, "it is followed")
            link.add_batch(b"not a batch")
            link.add(b"behind")
            heard: list[list[bytes]] = []

            def is_heard() -> bool:
                heard.extend(frames for frames in ear.heard() if frames[1].startswith(b"message"))
                return bool(heard)

            await until(is_heard, "the next message arrives")
            assert (heard[0][1].split()[1], heard[0][2]) == (b"1", b"behind")
            assert feed.counters["feed_undecodable"] == 1
            ear.close()

    asyncio.run(listen())
