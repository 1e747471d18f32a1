"""Reliable subscribers: who they are, and what they say.

They listen to the feed like anybody. The engine has a durable subscription for each of their topics, and the registry
their addresses: this process may die at any time, and so may they, for as long as they like.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable

import msgspec

from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed.feed import Feed
from oncemq.gateways.push.messages import TOPICS_MAX, AckGoodbye, AckNoted, AckReceived, AckWelcome, Goodbye, Hello
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.addresses import check_address
from oncemq.gateways.push.subscribers.keepalive import Tending
from oncemq.gateways.push.subscribers.registry import Registered, decode_registered, register, subscribers_of
from oncemq.gateways.push.subscribers.retransmission import Retransmitting
from oncemq.gateways.push.subscribers.subscriber import Subscriber
from oncemq.gateways.push.subscribers.subscriber_cursor import Place
from oncemq.protocol import errors
from oncemq.protocol.commands import START_EARLIEST, START_NEW
from oncemq.protocol.names import refuse_name, refuse_topic_name

#: Places that a hello asks about at a time.
_LOOKS_MAX = 100
_PAUSE_S = 1.0


class Reliable:
    def __init__(self, settings: PushSettings, link: Link, feed: Feed, counters: Counters) -> None:
        self._settings = settings
        self._link = link
        self._feed = feed
        self._counters = counters
        self._subscribers: dict[str, Subscriber] = {}
        self._tending = Tending(settings, counters)
        self._retransmitting = Retransmitting(settings, counters)
        self._is_loaded = asyncio.Event()

    # After a restart.

    async def resume(self) -> None:
        """Learn who there is; their places are opened bit by bit. Raises as the link does."""
        async for name, number, value in subscribers_of(self._link, self._settings.name):
            try:
                self._restore(name, number, decode_registered(value))
            except (msgspec.MsgspecError, errors.LimitReached) as error:
                text = f"the registered subscriber '{name}' can't be served: {error}"
                self._counters.trouble("places_refused", text, level=logging.ERROR)
        self._is_loaded.set()

    def _restore(self, name: str, number: int, registered: Registered) -> None:
        subscriber = self._known(name)
        subscriber.registered[number] = registered
        if not number:
            subscriber.address = registered.address
        for topic in registered.topics:
            place = self._add_place(subscriber, topic, START_NEW if topic in registered.new else START_EARLIEST)
            place.entry, place.is_registered = number, True

    async def _until_loaded(self) -> None:
        """Raises BrokerAway."""
        if self._is_loaded.is_set():
            return
        try:
            await asyncio.wait_for(self._is_loaded.wait(), 5.0)
        except TimeoutError:
            raise errors.BrokerAway("the gateway has not found its broker yet") from None

    def _known(self, name: str) -> Subscriber:
        subscriber = self._subscribers.get(name)
        if subscriber is None:
            subscriber = self._subscribers[name] = Subscriber(name)
        return subscriber

    def _add_place(self, subscriber: Subscriber, topic: str, start: int) -> Place:
        """Raises LimitReached."""
        place = subscriber.places.get(topic)
        if place is None:
            following = self._feed.hold(topic, (subscriber.name, topic))
            place = subscriber.places[topic] = Place(self._link, self._counters, following, subscriber.name, start)
        return place

    # What subscribers say.

    async def hello(self, said: Hello) -> AckWelcome:
        """Raises Malformed, NameInvalid, Unsupported, and what the broker refuses."""
        check_address(said.address, any_address=self._settings.any_address)
        _check_names(said.subscriber, said.topics)
        if said.subscriber == self._settings.feed_subscriber:
            raise errors.NameInvalid(f"'{said.subscriber}' is the gateway itself")
        await self._until_loaded()
        async with self._turn(said.subscriber) as subscriber:
            await self._welcome(subscriber, said)
            positions = {topic: place.acked for topic, place in subscriber.places.items() if place.is_open}
        return AckWelcome(subscriber=said.subscriber, topics=positions)

    @contextlib.asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[Subscriber]:
        """Hello and goodbye of one subscriber, one at a time."""
        while True:
            subscriber = self._known(name)
            async with subscriber.lock:
                if self._subscribers.get(name) is not subscriber:
                    # It was forgotten meanwhile.
                    continue
                try:
                    yield subscriber
                finally:
                    if not subscriber.places and not subscriber.registered:
                        del self._subscribers[name]
                return

    async def _welcome(self, subscriber: Subscriber, said: Hello) -> None:
        former = set(subscriber.places)
        count = len(former.union(said.topics))
        if not count:
            raise errors.NotSubscribed(f"'{subscriber.name}' is not subscribed, and names no topic")
        if count > TOPICS_MAX:
            raise errors.LimitReached(f"a subscriber has up to {TOPICS_MAX} topics")
        try:
            for topic in said.topics:
                self._add_place(subscriber, topic, START_EARLIEST if said.start == "earliest" else START_NEW)
            # First: whatever dies now, the next gateway goes on with it.
            await self._register(subscriber, said.address)
            await _take_back(list(subscriber.places.values()))
            await self._register(subscriber, said.address)
        except errors.Refused:
            await self._undo(subscriber, former)
            raise
        subscriber.address = said.address
        subscriber.has_answered()
        self._retransmitting.hang_up(subscriber)
        for place in subscriber.places.values():
            place.is_back()

    async def _undo(self, subscriber: Subscriber, former: set[str]) -> None:
        """A hello was refused: everything is as it was before."""
        for place in [place for topic, place in subscriber.places.items() if topic not in former]:
            if place.is_new:
                await place.end()
            self._drop(subscriber, place)
        await self._register(subscriber, subscriber.address)

    async def _register(self, subscriber: Subscriber, address: str) -> None:
        entries = subscriber.entries(address)
        await register(self._link, self._settings.name, subscriber.name, entries, subscriber.registered)
        for place in subscriber.places.values():
            place.is_registered = True

    async def goodbye(self, said: Goodbye) -> AckGoodbye:
        """Repeating it does no harm. Raises what the broker refuses."""
        _check_names(said.subscriber, said.topics)
        await self._until_loaded()
        async with self._turn(said.subscriber) as subscriber:
            leaving = [topic for topic in said.topics or tuple(subscriber.places) if topic in subscriber.places]
            for place in [subscriber.places[topic] for topic in dict.fromkeys(leaving)]:
                await place.end()
                self._drop(subscriber, place)
            if leaving or subscriber.registered:
                await self._register(subscriber, subscriber.address)
            left = tuple(subscriber.places)
        return AckGoodbye(subscriber=said.subscriber, topics=left)

    def _drop(self, subscriber: Subscriber, place: Place) -> None:
        place.drop()
        del subscriber.places[place.topic]
        self._feed.release(place.topic, (subscriber.name, place.topic))

    async def received(self, said: AckReceived) -> AckNoted:
        """Answered when the broker has it on disk. Raises what it can't be."""
        await self._until_loaded()
        subscriber = self._subscribers.get(said.subscriber)
        place = subscriber.places.get(said.topic) if subscriber is not None else None
        if subscriber is None or place is None:
            raise errors.NotSubscribed(f"'{said.subscriber}' is not subscribed to '{said.topic}'")
        if place.is_in_doubt or (place.is_open and said.topic_id not in (0, place.topic_id)):
            # The place stays to be opened, and the ack may come again.
            with contextlib.suppress(errors.Refused):
                await place.look()
        place.check_open()
        if said.topic_id not in (0, place.topic_id):
            raise errors.TopicGone(f"'{said.topic}' was deleted, and made again")
        place.note(_offsets_of(said), said.upto if isinstance(said.upto, int) else 0)
        subscriber.has_answered()
        return AckNoted(subscriber=said.subscriber, topic=said.topic, acked=await place.confirm())

    # What time brings.

    async def run(self) -> None:
        """Open what is to be opened, and send again what is due."""
        tick_s = min(0.5, self._settings.retransmit_ms / 4000)
        while True:
            await asyncio.sleep(tick_s)
            now_s = time.monotonic()
            for subscriber in self._subscribers.values():
                for place in subscriber.places.values():
                    self._tending.look_after(place, now_s)
                if any(place.is_left for place in subscriber.places.values()):
                    self._forget_soon(subscriber)
                self._retransmitting.look_after(subscriber, now_s)

    def _forget_soon(self, subscriber: Subscriber) -> None:
        if subscriber.forgetting is None or subscriber.forgetting.done():
            subscriber.forgetting = asyncio.ensure_future(self._forget_left(subscriber.name))

    async def _forget_left(self, name: str) -> None:
        """Somebody has ended subscriptions of it: so the next gateway must not make them again."""
        async with self._turn(name) as subscriber:
            for place in [place for place in subscriber.places.values() if place.is_left]:
                self._drop(subscriber, place)
            while True:
                try:
                    return await self._register(subscriber, subscriber.address)
                except errors.OnceMQError as error:
                    text = f"'{name}' is still registered for topics that it has left: {error.text}"
                    self._counters.trouble("places_waiting", text)
                    await asyncio.sleep(_PAUSE_S)

    async def stop(self) -> None:
        tasks = [each.forgetting for each in self._subscribers.values() if each.forgetting is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._tending.stop()
        await self._retransmitting.stop()


async def _take_back(places: list[Place]) -> None:
    """Whatever has become of them meanwhile. Raises what the broker refuses, for the first of them."""
    for first in range(0, len(places), _LOOKS_MAX):
        looks = (place.look(take_back=True) for place in places[first : first + _LOOKS_MAX])
        for outcome in await asyncio.gather(*looks, return_exceptions=True):
            if outcome is not None:
                raise outcome


def _offsets_of(said: AckReceived) -> tuple[int, ...]:
    return (*said.offsets, said.offset) if isinstance(said.offset, int) else said.offsets


def _check_names(subscriber: str, topics: Iterable[str]) -> None:
    """Raises NameInvalid."""
    refusal = refuse_name(subscriber, "subscriber's name")
    for topic in topics:
        refusal = refusal or refuse_topic_name(topic)
    if refusal is not None:
        raise errors.NameInvalid(refusal.text)
