"""Who is subscribed by plain packets, remembered in the broker's registry.

    <host> <port> <topic>   the topic's id and the first offset that the address gets, in decimal

The entry is there before the subscription at the broker is made, and goes after it has ended: so no subscription is
left behind for which nobody is there, whenever the gateway dies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from oncemq.gateways.link import expect
from oncemq.gateways.udp.context import Station, clock_ms, log
from oncemq.gateways.udp.plain.feed import Feed, look_up
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import errors
from oncemq.protocol.commands import RegistryList, RegistrySet, Unsubscribe
from oncemq.protocol.replies import RegistryEntry, RegistryListReply


def key_of(address: Address, topic: str) -> str:
    return f"{address[0]} {address[1]} {topic}"


def split_key(key: str) -> tuple[Address, str]:
    host, port, topic = key.split(" ", 2)
    return (host, int(port)), topic


class Feeds:
    def __init__(self, station: Station) -> None:
        self._station = station
        self._feeds: dict[str, Feed] = {}
        self._count = 0
        #: Addresses that are being forgotten.
        self._leaving: set[Address] = set()

    async def load(self) -> None:
        """What the last life of this gateway has promised. Raises BrokerAway."""
        after = ""
        while True:
            listing = RegistryList(self._station.settings.name, after=after)
            reply = expect((await self._station.link.ask(listing))[0], RegistryListReply)
            for entry in reply.entries:
                self._recall(entry)
            after = reply.after
            if not after:
                break
        for feed in self._feeds.values():
            feed.start()

    def _recall(self, entry: RegistryEntry) -> None:
        try:
            (address, topic), (topic_id, first) = split_key(entry.key), map(int, entry.value.split())
        except ValueError:
            log.warning("the registry has an entry that is none of this gateway's: '%s'", entry.key)
            return
        feed = self._feed(topic)
        if topic_id > feed.topic_id:
            # Whoever is there was subscribed to a former topic of the name.
            self._count -= len(feed.addresses)
            feed.addresses.clear()
            feed.topic_id = topic_id
        if topic_id == feed.topic_id:
            self._add(feed, address, first)

    def _feed(self, topic: str) -> Feed:
        feed = self._feeds.get(topic)
        if feed is None:
            feed = self._feeds[topic] = Feed(self._station, topic, self._topic_gone, self.forget)
        return feed

    def _add(self, feed: Feed, address: Address, first: int) -> None:
        self._count += address not in feed.addresses
        feed.addresses[address] = first
        self._station.guests.add(clock_ms(), address)

    @asynccontextmanager
    async def _alone(self, topic: str) -> AsyncIterator[Feed]:
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
        """False: it was subscribed before. Raises TopicUnknown, LimitReached, BrokerAway."""
        async with self._alone(topic) as feed:
            is_new = address not in feed.addresses
            if is_new:
                await self._subscribe(feed, address)
            feed.start()
            await feed.wait_until_open()
            return is_new

    async def _subscribe(self, feed: Feed, address: Address) -> None:
        settings = self._station.settings
        if self._count >= settings.plain_subscriptions_max:
            raise errors.LimitReached(f"there are {settings.plain_subscriptions_max} plain subscriptions, the limit")
        found = await look_up(self._station, feed.topic)
        if not feed.addresses:
            feed.topic_id = found.topic_id
        elif feed.topic_id != found.topic_id:
            # It finds out, and lets the others go.
            feed.start()
            raise errors.BrokerAway(f"'{feed.topic}' was made anew just now")
        first = found.end_offset
        entry = RegistrySet(settings.name, key_of(address, feed.topic), b"%d %d" % (feed.topic_id, first))
        await self._station.link.operate(entry)
        self._add(feed, address, first)
        log.info("new subscriber to topic '%s': %s:%d", feed.topic, *address)

    async def unsubscribe(self, address: Address, topic: str) -> None:
        """Raises NotSubscribed, TopicUnknown, BrokerAway."""
        async with self._alone(topic) as feed:
            if address not in feed.addresses:
                await look_up(self._station, topic)
                raise errors.NotSubscribed(topic)
            if len(feed.addresses) == 1:
                await self._end(feed)
            await self._remove(feed, address)

    async def _end(self, feed: Feed) -> None:
        """At the broker: from here on nothing is kept for it."""
        await feed.stop()
        try:
            await self._station.link.operate(Unsubscribe(feed.topic, self._station.settings.feed_name))
        except (errors.NotSubscribed, errors.SubscriptionExpired, errors.TopicUnknown):
            return
        except errors.OnceMQError:
            feed.start()
            raise

    async def _remove(self, feed: Feed, address: Address) -> None:
        settings = self._station.settings
        await self._station.link.operate(RegistrySet(settings.name, key_of(address, feed.topic), None))
        if feed.addresses.pop(address, None) is not None:
            self._count -= 1
        if not any(address in other.addresses for other in self._feeds.values()):
            self._station.guests.remove(address)

    # Those that are gone.

    def forget(self, address: Address) -> None:
        """It has vanished: all of its subscriptions end."""
        if address in self._leaving:
            return
        self._leaving.add(address)
        self._station.counters["subscribers_forgotten"] += 1
        log.info("%s:%d is gone, its plain subscriptions end", *address)
        self._station.run_lasting(self._forget(address))

    async def _forget(self, address: Address) -> None:
        try:
            for topic in [topic for topic, feed in self._feeds.items() if address in feed.addresses]:
                await self.unsubscribe(address, topic)
        finally:
            self._leaving.discard(address)

    def _topic_gone(self, feed: Feed) -> None:
        log.info("topic '%s' is gone, and its plain subscriptions with it", feed.topic)
        self._station.run_lasting(self._drop(feed.topic))

    async def _drop(self, topic: str) -> None:
        async with self._alone(topic) as feed:
            await self._end(feed)
            for address in list(feed.addresses):
                await self._remove(feed, address)
