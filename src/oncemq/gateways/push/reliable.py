"""Reliable subscribers: who they are, what each has acknowledged, and sending again what it has not.

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

from oncemq import errors
from oncemq.engine.commands import START_EARLIEST, START_NEW, RegistrySet, Unsubscribe
from oncemq.engine.names import refuse_name, refuse_topic_name
from oncemq.gateways.link import Link
from oncemq.gateways.push.addresses import check_address
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed import Feed
from oncemq.gateways.push.following import NAMESPACE
from oncemq.gateways.push.messages import TOPICS_MAX, AckGoodbye, AckNoted, AckReceived, AckWelcome, Goodbye, Hello
from oncemq.gateways.push.place import Place
from oncemq.gateways.push.registry import Registered, decode_registered, encode_registered, entries_of
from oncemq.gateways.push.retransmitting import Retransmitting, Subscriber
from oncemq.gateways.push.settings import PushSettings

log = logging.getLogger("oncemq.push")

#: Places that are opened at a time, after a restart.
_OPENING_MAX = 100
#: What the registry has of somebody who is not in it.
_NOBODY = Registered("", ())
_GONE = (errors.TopicGone, errors.TopicUnknown, errors.NotSubscribed, errors.SubscriptionExpired)


class Reliable:
    def __init__(self, settings: PushSettings, link: Link, feed: Feed, counters: Counters) -> None:
        self._settings = settings
        self._link = link
        self._feed = feed
        self._counters = counters
        self._subscribers: dict[str, Subscriber] = {}
        self._retransmitting = Retransmitting(settings, counters, self.mend)
        self._is_loaded = asyncio.Event()

    def _key_of(self, subscriber: str) -> str:
        return f"{self._settings.name}/subscriber/{subscriber}"

    # After a restart.

    async def resume(self) -> None:
        """Raises as the link does."""
        prefix = self._key_of("")
        places: list[Place] = []
        async for entry in entries_of(self._link, NAMESPACE, prefix):
            places += self._restore(entry.key.removeprefix(prefix), entry.value)
        for first in range(0, len(places), _OPENING_MAX):
            await asyncio.gather(*map(self._reopen, places[first : first + _OPENING_MAX]))
        for place in places:
            place.missed_all()
        self._is_loaded.set()

    def _restore(self, name: str, value: bytes) -> list[Place]:
        try:
            registered = decode_registered(value)
            subscriber = self._known(name)
            subscriber.address, subscriber.registered = registered.address, registered
            return [self._add_place(subscriber, topic) for topic in registered.topics]
        except (msgspec.MsgspecError, errors.LimitReached) as error:
            text = f"the registered subscriber '{name}' can't be served: {error}"
            self._counters.trouble("places_refused", text, level=logging.ERROR)
            return []

    async def _reopen(self, place: Place) -> None:
        if not place.is_open:
            try:
                await place.open(START_NEW)
            except errors.Refused as error:
                text = f"'{place.subscriber}' can't be subscribed to '{place.topic}' any more: {error.text}"
                self._counters.trouble("places_refused", text, level=logging.ERROR)

    async def _until_loaded(self) -> None:
        """Raises BrokerAway."""
        try:
            await asyncio.wait_for(self._is_loaded.wait(), 5.0)
        except TimeoutError:
            raise errors.BrokerAway("the gateway has not found its broker yet") from None

    def _known(self, name: str) -> Subscriber:
        subscriber = self._subscribers.get(name)
        if subscriber is None:
            subscriber = self._subscribers[name] = Subscriber(name)
        return subscriber

    def _add_place(self, subscriber: Subscriber, topic: str) -> Place:
        """Raises LimitReached."""
        place = subscriber.places.get(topic)
        if place is None:
            following = self._feed.hold(topic, (subscriber.name, topic))
            place = subscriber.places[topic] = Place(self._link, following, subscriber.name)
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
                    if not subscriber.places:
                        del self._subscribers[name]
                return

    async def _welcome(self, subscriber: Subscriber, said: Hello) -> None:
        former = set(subscriber.places)
        topics = dict.fromkeys([*former, *said.topics])
        if not topics:
            raise errors.NotSubscribed(f"'{subscriber.name}' is not subscribed, and names no topic")
        if len(topics) > TOPICS_MAX:
            raise errors.LimitReached(f"a subscriber has up to {TOPICS_MAX} topics")
        try:
            places = [self._add_place(subscriber, topic) for topic in topics]
            # First: whatever dies now, the next gateway goes on with it.
            await self._register(subscriber, Registered(said.address, tuple(topics)))
            start = START_EARLIEST if said.start == "earliest" else START_NEW
            for place in places:
                if not place.is_open or place.is_lost:
                    await place.open(start)
        except errors.Refused:
            await self._take_back(subscriber, former)
            raise
        subscriber.is_back(said.address)
        for place in places:
            place.missed_all()

    async def _take_back(self, subscriber: Subscriber, former: set[str]) -> None:
        """A hello was refused: everything is as it was before."""
        for topic in [topic for topic in subscriber.places if topic not in former]:
            if subscriber.places[topic].is_new:
                await self._leave(subscriber, topic)
            else:
                self._drop_place(subscriber, topic)
        left = tuple(subscriber.places)
        await self._register(subscriber, Registered(subscriber.address, left) if left else None)

    async def _register(self, subscriber: Subscriber, registered: Registered | None) -> None:
        if registered == subscriber.registered:
            return
        subscriber.registered = None
        value = None if registered is None else encode_registered(registered)
        await self._link.operate(RegistrySet(NAMESPACE, self._key_of(subscriber.name), value))
        subscriber.registered = registered or _NOBODY

    async def goodbye(self, said: Goodbye) -> AckGoodbye:
        """Repeating it does no harm. Raises what the broker refuses."""
        _check_names(said.subscriber, said.topics)
        await self._until_loaded()
        async with self._turn(said.subscriber) as subscriber:
            leaving = [topic for topic in said.topics or tuple(subscriber.places) if topic in subscriber.places]
            for topic in leaving:
                await self._leave(subscriber, topic)
            left = tuple(subscriber.places)
            if leaving:
                await self._register(subscriber, Registered(subscriber.address, left) if left else None)
        return AckGoodbye(subscriber=said.subscriber, topics=left)

    async def _leave(self, subscriber: Subscriber, topic: str) -> None:
        with contextlib.suppress(*_GONE):
            await self._link.operate(Unsubscribe(topic, subscriber.name))
        self._drop_place(subscriber, topic)

    def _drop_place(self, subscriber: Subscriber, topic: str) -> None:
        subscriber.places.pop(topic).is_open = False
        self._feed.release(topic, (subscriber.name, topic))

    async def received(self, said: AckReceived) -> AckNoted:
        """Answered when the broker has it on disk. Raises what it can't be."""
        await self._until_loaded()
        subscriber = self._subscribers.get(said.subscriber)
        place = subscriber.places.get(said.topic) if subscriber is not None else None
        if subscriber is None or place is None or not place.is_open:
            raise errors.NotSubscribed(f"'{said.subscriber}' is not subscribed to '{said.topic}'")
        if said.topic_id and said.topic_id != place.topic_id:
            raise errors.TopicGone(f"'{said.topic}' was deleted, and made again")
        place.note(_offsets_of(said), said.upto)
        subscriber.has_answered()
        try:
            acked = await place.confirm()
        except errors.Refused as error:
            await self.mend(place, error)
            raise
        return AckNoted(subscriber=said.subscriber, topic=said.topic, acked=acked)

    async def mend(self, place: Place, error: errors.Refused) -> None:
        """The broker does not know the place as it was. Raises as the link does."""
        subscriber = self._subscribers.get(place.subscriber)
        if subscriber is None or subscriber.places.get(place.topic) is not place:
            return
        if isinstance(error, errors.Fenced):
            place.is_lost = True
            text = f"somebody else consumes '{place.topic}' as '{place.subscriber}': its next hello takes it back"
            self._counters.trouble("places_lost", text)
            return
        # Moved by a seek, or its topic was deleted: the subscriber stays subscribed to what has the name now.
        await place.open(START_EARLIEST if isinstance(error, _GONE) else START_NEW)
        place.missed_all()

    # What time brings.

    async def run(self) -> None:
        """Send again what is due."""
        tick_s = min(0.5, self._settings.retransmit_ms / 4000)
        while True:
            await asyncio.sleep(tick_s)
            now_s = time.monotonic()
            for subscriber in self._subscribers.values():
                self._retransmitting.look_after(subscriber, now_s)

    async def stop(self) -> None:
        await self._retransmitting.stop()


def _offsets_of(said: AckReceived) -> tuple[int, ...]:
    return (*said.offsets, said.offset) if isinstance(said.offset, int) else said.offsets


def _check_names(subscriber: str, topics: Iterable[str]) -> None:
    """Raises NameInvalid."""
    refusal = refuse_name(subscriber, "subscriber's name")
    for topic in topics:
        refusal = refusal or refuse_topic_name(topic)
    if refusal is not None:
        raise errors.NameInvalid(refusal.text)
