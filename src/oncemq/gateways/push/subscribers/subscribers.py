"""Reliable subscribers: hello, goodbye and acks.

They listen to the feed like other subscribers. The broker has a durable subscription for each of their topics, and the
registry has their addresses: this process may crash at any time, and so may they, for any time. If there are users, a
subscriber belongs to one of them, and everything is done on behalf of that user.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable

import msgspec

from oncemq.auth.users import user_of
from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed.feed import Feed
from oncemq.gateways.push.messages import TOPICS_MAX, AckGoodbye, AckNoted, AckReceived, AckWelcome, Goodbye, Hello
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.addresses import check_address
from oncemq.gateways.push.subscribers.keepalive import Keepalive
from oncemq.gateways.push.subscribers.registry import Registered, decode_registered, register, subscribers_of
from oncemq.gateways.push.subscribers.retransmission import Retransmission
from oncemq.gateways.push.subscribers.subscriber import Subscriber
from oncemq.gateways.push.subscribers.subscriber_cursor import SubscriberCursor
from oncemq.gateways.tasks import cancel, start
from oncemq.protocol import errors
from oncemq.protocol.commands import START_EARLIEST, START_NEW
from oncemq.protocol.names import refuse_name, refuse_topic_name

#: User, which is empty if there are none, and name of a subscriber.
_Key = tuple[str, str]
#: How many cursors a hello checks at a time.
_CHECKS_MAX = 100
_PAUSE_S = 1.0


class ReliableSubscribers:
    def __init__(self, settings: PushSettings, link: Link, feed: Feed, counters: Counters) -> None:
        self._settings = settings
        self._link = link
        self._feed = feed
        self._counters = counters
        #: By user and name.
        self._subscribers: dict[_Key, Subscriber] = {}
        self._keepalive = Keepalive(settings, counters)
        self._retransmission = Retransmission(settings, counters)
        self._is_loaded = asyncio.Event()

    # After a restart.

    async def resume(self) -> None:
        """Load the subscribers from the registry. Their cursors are opened later. Raises as the link does."""
        async for user, name, number, value in subscribers_of(self._link, self._settings.name):
            try:
                self._restore(user, name, number, decode_registered(value))
            except (msgspec.MsgspecError, errors.LimitReached) as error:
                text = f"registered subscriber '{name}' can't be served: {error}"
                self._counters.report("subscriptions_refused", text, level=logging.ERROR)
        self._is_loaded.set()

    def _restore(self, user: str, name: str, number: int, registered: Registered) -> None:
        if user_of(registered.caller) != user:
            return
        subscriber = self._subscriber_of(registered.caller, name)
        subscriber.registered[number] = registered
        if not number:
            subscriber.address = registered.address
        for topic in registered.topics:
            cursor = self._add_cursor(subscriber, topic, START_NEW if topic in registered.new else START_EARLIEST)
            cursor.entry, cursor.is_registered = number, True

    async def _wait_until_loaded(self) -> None:
        """Raises BrokerAway."""
        if self._is_loaded.is_set():
            return
        try:
            async with asyncio.timeout(5.0):
                await self._is_loaded.wait()
        except TimeoutError:
            raise errors.BrokerAway("the gateway has not reached its broker yet") from None

    def _subscriber_of(self, caller: str, name: str) -> Subscriber:
        user = user_of(caller)
        subscriber = self._subscribers.get((user, name))
        if subscriber is None:
            # Its caller may change, so it has a link of its own.
            link = self._link.for_caller(caller) if user else self._link
            subscriber = self._subscribers[user, name] = Subscriber(name, link, user)
        return subscriber

    def _add_cursor(self, subscriber: Subscriber, topic: str, start: int) -> SubscriberCursor:
        """Raises LimitReached."""
        cursor = subscriber.cursors.get(topic)
        if cursor is None:
            follower = self._feed.hold(topic, subscriber.holder, subscriber.caller)
            cursor = subscriber.cursors[topic] = SubscriberCursor(
                subscriber.link, self._counters, follower, subscriber.name, start
            )
        return cursor

    # Requests.

    async def hello(self, request: Hello, caller: str = "") -> AckWelcome:
        """Subscribe, and take back what another consumer has taken over. Raises Malformed, NameInvalid, Unsupported,
        and what the broker refuses."""
        check_address(request.address, any_address=self._settings.any_address)
        _check_names(request.subscriber, request.topics)
        if request.subscriber == self._settings.feed_subscriber_of(user_of(caller)):
            raise errors.NameInvalid(f"'{request.subscriber}' is the gateway's own name: choose another one")
        await self._wait_until_loaded()
        async with self._locked(caller, request.subscriber) as subscriber:
            await self._welcome(subscriber, request)
            positions = {topic: cursor.acked for topic, cursor in subscriber.cursors.items() if cursor.is_open}
        return AckWelcome(subscriber=request.subscriber, topics=positions)

    @contextlib.asynccontextmanager
    async def _locked(self, caller: str, name: str) -> AsyncIterator[Subscriber]:
        """Serialise hello and goodbye of one subscriber."""
        key = user_of(caller), name
        while True:
            subscriber = self._subscriber_of(caller, name)
            async with subscriber.lock:
                if self._subscribers.get(key) is not subscriber:
                    # It was deleted meanwhile.
                    continue
                subscriber.use(caller)
                try:
                    yield subscriber
                finally:
                    if not subscriber.cursors and not subscriber.registered:
                        del self._subscribers[key]
                return

    async def _welcome(self, subscriber: Subscriber, request: Hello) -> None:
        former = set(subscriber.cursors)
        count = len(former.union(request.topics))
        if not count:
            raise errors.NotSubscribed(f"'{subscriber.name}' has no subscriptions, and its hello names no topic")
        if count > TOPICS_MAX:
            raise errors.LimitReached(f"a subscriber may have at most {TOPICS_MAX} topics")
        try:
            for topic in request.topics:
                self._add_cursor(subscriber, topic, START_EARLIEST if request.start == "earliest" else START_NEW)
            # Registered first: if the gateway crashes now, the next one continues with it.
            await self._register(subscriber, request.address)
            await _take_back(list(subscriber.cursors.values()))
            await self._register(subscriber, request.address)
        except errors.Refused:
            await self._undo(subscriber, former)
            raise
        subscriber.address = request.address
        subscriber.note_answer()
        self._retransmission.cancel_call(subscriber)
        for cursor in subscriber.cursors.values():
            cursor.restart()

    async def _undo(self, subscriber: Subscriber, former: set[str]) -> None:
        """A hello was refused: restore the former state."""
        for cursor in [cursor for topic, cursor in subscriber.cursors.items() if topic not in former]:
            if cursor.is_new:
                await cursor.delete()
            self._drop(subscriber, cursor)
        await self._register(subscriber, subscriber.address)

    async def _register(self, subscriber: Subscriber, address: str) -> None:
        entries = subscriber.entries(address)
        name, user = self._settings.name, subscriber.user
        await register(self._link, name, user, subscriber.name, entries, subscriber.registered)
        for cursor in subscriber.cursors.values():
            cursor.is_registered = True

    async def goodbye(self, request: Goodbye, caller: str = "") -> AckGoodbye:
        """Unsubscribe. It is safe to repeat. Raises what the broker refuses."""
        _check_names(request.subscriber, request.topics)
        await self._wait_until_loaded()
        async with self._locked(caller, request.subscriber) as subscriber:
            leaving = [topic for topic in request.topics or tuple(subscriber.cursors) if topic in subscriber.cursors]
            for cursor in [subscriber.cursors[topic] for topic in dict.fromkeys(leaving)]:
                await cursor.delete()
                self._drop(subscriber, cursor)
            if leaving or subscriber.registered:
                await self._register(subscriber, subscriber.address)
            left = tuple(subscriber.cursors)
        return AckGoodbye(subscriber=request.subscriber, topics=left)

    def _drop(self, subscriber: Subscriber, cursor: SubscriberCursor) -> None:
        cursor.drop()
        del subscriber.cursors[cursor.topic]
        self._feed.release(cursor.topic, subscriber.holder, subscriber.user)

    async def ack(self, request: AckReceived, caller: str = "") -> AckNoted:
        """Note acks, and wait until they are durable at the broker. Raises NotSubscribed, Fenced, TopicGone, Busy,
        OffsetOutOfRange, and as the link does."""
        await self._wait_until_loaded()
        subscriber = self._subscribers.get((user_of(caller), request.subscriber))
        cursor = subscriber.cursors.get(request.topic) if subscriber is not None else None
        if subscriber is None or cursor is None:
            raise errors.NotSubscribed(f"'{request.subscriber}' is not subscribed to '{request.topic}'")
        subscriber.use(caller)
        if cursor.is_in_doubt or (cursor.is_open and request.topic_id not in (0, cursor.topic_id)):
            # If this is refused, the cursor is opened later, and the ack may be repeated.
            with contextlib.suppress(errors.Refused):
                await cursor.check()
        cursor.refuse_unless_open()
        if request.topic_id not in (0, cursor.topic_id):
            raise errors.TopicGone(f"'{request.topic}' was deleted and created again")
        cursor.note_acks(_offsets_of(request), request.upto if isinstance(request.upto, int) else 0)
        subscriber.note_answer()
        return AckNoted(subscriber=request.subscriber, topic=request.topic, acked=await cursor.confirm())

    # Periodic work.

    async def run(self) -> None:
        """Open closed cursors, and send due messages again, until cancelled."""
        tick_s = min(0.5, self._settings.retransmit_ms / 4000)
        while True:
            await asyncio.sleep(tick_s)
            now_s = time.monotonic()
            for subscriber in self._subscribers.values():
                for cursor in subscriber.cursors.values():
                    self._keepalive.check_if_due(cursor, now_s)
                if any(cursor.is_unsubscribed for cursor in subscriber.cursors.values()):
                    self._drop_unsubscribed_soon(subscriber)
                self._retransmission.call_if_due(subscriber, now_s)

    def _drop_unsubscribed_soon(self, subscriber: Subscriber) -> None:
        if subscriber.dropping is None or subscriber.dropping.done():
            work = self._drop_unsubscribed(subscriber.caller, subscriber.name)
            subscriber.dropping = start(work, "dropping push subscriptions")

    async def _drop_unsubscribed(self, caller: str, name: str) -> None:
        """An operator has deleted subscriptions: drop their cursors and entries, so that the next gateway does not
        create them again."""
        async with self._locked(caller, name) as subscriber:
            for cursor in [cursor for cursor in subscriber.cursors.values() if cursor.is_unsubscribed]:
                self._drop(subscriber, cursor)
            while True:
                try:
                    return await self._register(subscriber, subscriber.address)
                except errors.OnceMQError as error:
                    text = f"'{name}' is still registered for topics that it is not subscribed to: {error.text}"
                    self._counters.report("subscriptions_waiting", text)
                    await asyncio.sleep(_PAUSE_S)

    async def stop(self) -> None:
        tasks = [each.dropping for each in self._subscribers.values() if each.dropping is not None]
        await cancel(*tasks)
        await self._keepalive.stop()
        await self._retransmission.stop()


async def _take_back(cursors: list[SubscriberCursor]) -> None:
    """Open all cursors, even if another consumer has taken them over. Raises the first refusal of the broker."""
    for first in range(0, len(cursors), _CHECKS_MAX):
        checks = (cursor.check(take_back=True) for cursor in cursors[first : first + _CHECKS_MAX])
        for outcome in await asyncio.gather(*checks, return_exceptions=True):
            if outcome is not None:
                raise outcome


def _offsets_of(request: AckReceived) -> tuple[int, ...]:
    return (*request.offsets, request.offset) if isinstance(request.offset, int) else request.offsets


def _check_names(subscriber: str, topics: Iterable[str]) -> None:
    """Raises NameInvalid."""
    refusal = refuse_name(subscriber, "subscriber's name")
    for topic in topics:
        refusal = refusal or refuse_topic_name(topic)
    if refusal is not None:
        raise errors.NameInvalid(refusal.text)
