"""The plain subscribers, listed in the broker's registry.

    <host> <port> <topic>   the topic's id and the first offset that the address gets, in decimal

An entry is written before the subscription at the broker is created, and deleted after the subscription is deleted. So
no subscription without subscribers is left behind, even if the gateway crashes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from oncemq.gateways.registry import iterate_entries
from oncemq.gateways.subscription import unsubscribe
from oncemq.gateways.udp.context import UdpContext, clock_ms, log
from oncemq.gateways.udp.plain.access import PlainAccess
from oncemq.gateways.udp.plain.feed import Feed, find_topic_end
from oncemq.gateways.udp.tokens import Address, source_of
from oncemq.protocol import errors
from oncemq.protocol.commands import RegistrySet
from oncemq.protocol.replies import RegistryEntry


def key_of(address: Address, topic: str) -> str:
    """Return the registry's key of an address and a topic."""
    return f"{address[0]} {address[1]} {topic}"


def split_key(key: str) -> tuple[Address, str]:
    """Raises ValueError."""
    host, port, topic = key.split(" ", 2)
    return (host, int(port)), topic


class Feeds:
    def __init__(self, context: UdpContext, access: PlainAccess) -> None:
        self._context = context
        self._access = access
        self._feeds: dict[str, Feed] = {}
        self._count = 0
        self._source_counts: Counter[str] = Counter()
        #: Addresses that are being deleted.
        self._leaving: set[Address] = set()

    async def load(self) -> None:
        """Load the subscribers from before a restart. Raises BrokerAway and others."""
        async for entry in iterate_entries(await self._access.link(), self._context.settings.name):
            self._restore(entry)
        for feed in self._feeds.values():
            feed.start()

    def _restore(self, entry: RegistryEntry) -> None:
        try:
            (address, topic), (topic_id, first) = split_key(entry.key), map(int, entry.value.split())
        except ValueError:
            log.warning("an entry of the registry is not valid: '%s'", entry.key)
            return
        feed = self._feed(topic)
        if topic_id > feed.topic_id:
            # The addresses so far were subscribed to a deleted topic of the same name.
            for former in list(feed.addresses):
                self._discard(feed, former)
            feed.topic_id = topic_id
        if topic_id == feed.topic_id:
            self._add(feed, address, first)

    def _feed(self, topic: str) -> Feed:
        feed = self._feeds.get(topic)
        if feed is None:
            feed = self._feeds[topic] = Feed(self._context, self._access, topic, self._topic_gone, self.delete_address)
        return feed

    def _add(self, feed: Feed, address: Address, first: int) -> None:
        if address not in feed.addresses:
            self._count += 1
            self._source_counts[source_of(address)] += 1
        feed.addresses[address] = first
        self._context.peers.add(clock_ms(), address)

    def _discard(self, feed: Feed, address: Address) -> None:
        if feed.addresses.pop(address, None) is not None:
            self._count -= 1
            source = source_of(address)
            self._source_counts[source] -= 1
            if not self._source_counts[source]:
                del self._source_counts[source]

    @asynccontextmanager
    async def _locked(self, topic: str) -> AsyncIterator[Feed]:
        """Serialise changes of a topic's subscribers."""
        feed = self._feed(topic)
        feed.users += 1
        try:
            async with feed.lock:
                yield feed
        finally:
            feed.users -= 1
            if not feed.users and not feed.addresses and self._feeds.get(topic) is feed:
                del self._feeds[topic]

    async def subscribe(self, address: Address, topic: str) -> bool:
        """Subscribe an address. False: it was subscribed before. Raises TopicUnknown, LimitReached, BrokerAway."""
        async with self._locked(topic) as feed:
            is_new = address not in feed.addresses
            if is_new:
                await self._subscribe(feed, address)
            feed.start()
            await feed.wait_until_open()
            return is_new

    async def _subscribe(self, feed: Feed, address: Address) -> None:
        settings = self._context.settings
        if self._count >= settings.plain_subscriptions_max:
            raise errors.LimitReached(f"the limit of {settings.plain_subscriptions_max} plain subscriptions is reached")
        if self._source_counts[source_of(address)] >= settings.source_subscriptions_max:
            raise errors.LimitReached(
                f"the limit of {settings.source_subscriptions_max} plain subscriptions per source is reached"
            )
        link = await self._access.link()
        found = await find_topic_end(link, feed.topic)
        if not feed.addresses:
            feed.topic_id = found.topic_id
        elif feed.topic_id != found.topic_id:
            # The feed finds out, and deletes the other addresses. The packet gets no reply, so it is repeated.
            feed.start()
            raise errors.BrokerAway(f"'{feed.topic}' was created again just now")
        first = found.end_offset
        entry = RegistrySet(settings.name, key_of(address, feed.topic), b"%d %d" % (feed.topic_id, first))
        await link.operate(entry)
        self._add(feed, address, first)
        log.info("new subscriber to topic '%s': %s:%d", feed.topic, *address)

    async def unsubscribe(self, address: Address, topic: str) -> None:
        """Unsubscribe an address. Raises NotSubscribed, TopicUnknown, BrokerAway."""
        async with self._locked(topic) as feed:
            if address not in feed.addresses:
                await find_topic_end(await self._access.link(), topic)
                raise errors.NotSubscribed(topic)
            if len(feed.addresses) == 1:
                await self._end(feed)
            await self._remove(feed, address)

    async def _end(self, feed: Feed) -> None:
        """Stop a feed and delete its subscription."""
        await feed.stop()
        try:
            await unsubscribe(await self._access.link(), feed.topic, self._context.settings.feed_name)
        except errors.OnceMQError:
            feed.start()
            raise

    async def _remove(self, feed: Feed, address: Address) -> None:
        settings = self._context.settings
        link = await self._access.link()
        await link.operate(RegistrySet(settings.name, key_of(address, feed.topic), None))
        self._discard(feed, address)
        if not any(address in other.addresses for other in self._feeds.values()):
            self._context.peers.remove(address)

    # Addresses and topics that are gone.

    def delete_address(self, address: Address) -> None:
        """Delete all subscriptions of an address that is gone."""
        if address in self._leaving:
            return
        self._leaving.add(address)
        self._context.counters["subscribers_forgotten"] += 1
        log.info("%s:%d is gone: its plain subscriptions are deleted", *address)
        self._context.run_in_background(self._delete_address(address), "deleting a plain subscriber")

    async def _delete_address(self, address: Address) -> None:
        try:
            for topic in [topic for topic, feed in self._feeds.items() if address in feed.addresses]:
                await self.unsubscribe(address, topic)
        finally:
            self._leaving.discard(address)

    def _topic_gone(self, feed: Feed) -> None:
        log.info("topic '%s' was deleted, and its plain subscriptions too", feed.topic)
        self._context.run_in_background(self._drop(feed.topic), "ending a feed of plain packets")

    async def _drop(self, topic: str) -> None:
        async with self._locked(topic) as feed:
            await self._end(feed)
            for address in list(feed.addresses):
                await self._remove(feed, address)
