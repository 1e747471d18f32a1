"""Answers requests: translates each operation to the broker's commands.

With an id, an operation happens once (the id is a key of the broker), and a get gets its message under that id
(keyed_delivery.py). Without an id, a repetition can't be told from a new request: a get is a new one, unless the one
before it is not answered yet.
"""

from __future__ import annotations

import asyncio
import contextlib

from oncemq.client.gateway_api import make_put
from oncemq.gateways.keyed_delivery import NO_KEY, KeyedDelivery
from oncemq.gateways.keyed_lock import KeyedLock
from oncemq.gateways.link import Link
from oncemq.gateways.put_batcher import BATCH_BYTES_MAX
from oncemq.gateways.subscription import SubscriptionKey
from oncemq.gateways.subscription_cache import SubscriptionCache
from oncemq.gateways.subscription_reader import SubscriptionReader, retry_when_stale
from oncemq.gateways.tasks import start_awaited
from oncemq.gateways.text.requests import Request, format_done, format_message
from oncemq.protocol import errors
from oncemq.protocol.commands import Ack, Find, Keyed, Operation, Subscribe, Unsubscribe
from oncemq.protocol.replies import FindReply, PutReply, Reply, SubscribeReply, expect

PRINCIPAL = "text"


class TextServer:
    """For the requests of one caller."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._subscriptions = SubscriptionCache(link)
        self._delivery = KeyedDelivery(link)
        self._lock = KeyedLock()
        #: Gets without an id that are in progress.
        self._unnamed: dict[SubscriptionKey, asyncio.Task[bytes]] = {}

    async def answer(self, request: Request) -> bytes:
        """Return the reply to a request. Raises what the broker refuses it with."""
        if request.verb == "put":
            return await self._put(request)
        if request.verb == "sub":
            return await self._subscribe(request)
        if request.verb == "unsub":
            return await self._unsubscribe(request)
        if request.id:
            return await self._get(request.topic, request.subscriber, request.id)
        return await self._get_unnamed((request.topic, request.subscriber))

    async def _put(self, request: Request) -> bytes:
        if request.id:
            operation, payload = make_put(request.topic, False, [request.content])
            stored = expect((await self._link.ask(self._keyed(request, operation), payload))[0], PutReply)
        elif len(request.content) > BATCH_BYTES_MAX:
            stored = expect(await self._link.operate(*make_put(request.topic, False, [request.content])), PutReply)
        else:
            stored = await self._link.put(request.topic, request.content)
        return format_done(f"STORED {stored.subscriptions}")

    async def _subscribe(self, request: Request) -> bytes:
        operation = Subscribe(request.topic, request.subscriber, request.start)
        made = expect(await self._perform(request, operation), SubscribeReply)
        return format_done("SUBSCRIBED" if made.created else "ALREADY_SUBSCRIBED")

    async def _unsubscribe(self, request: Request) -> bytes:
        topic_id = await self._topic_id(request.topic)
        async with self._lock.hold((request.topic, request.subscriber)):
            await self._perform(request, Unsubscribe(request.topic, request.subscriber))
            if topic_id:
                # The subscription is deleted even if this fails.
                with contextlib.suppress(errors.OnceMQError):
                    await self._delete_keys(request.topic, topic_id, request.subscriber)
        return format_done("UNSUBSCRIBED")

    async def _perform(self, request: Request, operation: Operation) -> Reply:
        if request.id:
            return (await self._link.ask(self._keyed(request, operation)))[0]
        return await self._link.operate(operation)

    def _keyed(self, request: Request, operation: Operation) -> Keyed:
        # An id contains no space, so that two clients never have the same key.
        return Keyed(self._link.principal(PRINCIPAL), f"{request.id} {request.subscriber}", operation)

    async def _topic_id(self, topic: str) -> int:
        """Return the topic's id; 0 if it does not exist."""
        try:
            return (await self._link.query(Find(topic, 0), FindReply)).topic_id
        except errors.TopicUnknown:
            return 0

    async def _delete_keys(self, topic: str, topic_id: int, subscriber: str) -> None:
        """A repeated unsub may arrive after the client has subscribed again and got a message: then keep the keys."""
        try:
            await self._link.ask(Ack(topic_id, subscriber, 0, 0))
        except (errors.NotSubscribed, errors.TopicGone):
            await self._delivery.delete(subscriber, topic, topic_id)

    # Gets.

    async def _get(self, topic: str, subscriber: str, key: str) -> bytes:
        async with self._lock.hold((topic, subscriber)):
            reader = SubscriptionReader(self._subscriptions, topic, subscriber)
            message = await retry_when_stale(reader, lambda: self._delivery.deliver(reader, key))
        return format_message(message.value)

    async def _get_unnamed(self, key: SubscriptionKey) -> bytes:
        """A get that comes while another one is in progress is a repetition of that one: the client had a timeout."""
        task = self._unnamed.get(key)
        if task is None:
            task = self._unnamed[key] = start_awaited(self._get(*key, NO_KEY))
            task.add_done_callback(lambda _: self._unnamed.pop(key))
        # A gateway that stops must not leave a get unfinished.
        return await asyncio.shield(task)
