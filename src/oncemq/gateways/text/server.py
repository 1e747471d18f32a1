"""Answers requests: what each operation is at the broker.

With an id, an operation happens once (a key of the broker's), and a get is given its message under that id (giving.py).
Without one, nothing can be told from its repetition: a get is a new one, unless the one before is not answered yet.
"""

from __future__ import annotations

import asyncio
import contextlib

from oncemq.gateways.keyed_delivery import NO_KEY, Giving, until_settled
from oncemq.gateways.keyed_lock import Turns
from oncemq.gateways.link import MERGED_BYTES, Link, expect, make_put
from oncemq.gateways.subscription_cache import Place, Places
from oncemq.gateways.subscription_reader import Reading
from oncemq.gateways.text.requests import Request, format_done, format_message
from oncemq.protocol import errors
from oncemq.protocol.commands import Ack, Find, Keyed, Operation, Subscribe, Unsubscribe
from oncemq.protocol.replies import FindReply, PutReply, Reply, SubscribeReply

PRINCIPAL = "text"


class Desk:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._places = Places()
        self._giving = Giving()
        self._turns = Turns()
        #: Gets without an id that are on their way.
        self._unnamed: dict[Place, asyncio.Task[bytes]] = {}

    async def answer(self, request: Request) -> bytes:
        """Raises what it is refused with."""
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
            operation, payload = make_put(request.topic, [request.content])
            stored = expect((await self._link.ask(_keyed(request, operation), payload))[0], PutReply)
        elif len(request.content) > MERGED_BYTES:
            stored = expect(await self._link.operate(*make_put(request.topic, [request.content])), PutReply)
        else:
            stored = await self._link.put(request.topic, request.content)
        return format_done(f"STORED {stored.subscriptions}")

    async def _subscribe(self, request: Request) -> bytes:
        operation = Subscribe(request.topic, request.subscriber, request.start)
        made = expect(await self._perform(request, operation), SubscribeReply)
        return format_done("SUBSCRIBED" if made.created else "ALREADY_SUBSCRIBED")

    async def _unsubscribe(self, request: Request) -> bytes:
        topic_id = await self._topic_id(request.topic)
        async with self._turns.of((request.topic, request.subscriber)):
            await self._perform(request, Unsubscribe(request.topic, request.subscriber))
            if topic_id:
                # Whatever becomes of it, the subscription is ended.
                with contextlib.suppress(errors.OnceMQError):
                    await self._forget(topic_id, request.subscriber)
        return format_done("UNSUBSCRIBED")

    async def _perform(self, request: Request, operation: Operation) -> Reply:
        if request.id:
            return (await self._link.ask(_keyed(request, operation)))[0]
        return await self._link.operate(operation)

    async def _topic_id(self, topic: str) -> int:
        """0: there is no such topic."""
        try:
            return expect((await self._link.ask(Find(topic, 0)))[0], FindReply).topic_id
        except errors.TopicUnknown:
            return 0

    async def _forget(self, topic_id: int, subscriber: str) -> None:
        """A repeated unsub may come when the client has subscribed again, and been given something."""
        try:
            await self._link.ask(Ack(topic_id, subscriber, 0, 0))
        except (errors.NotSubscribed, errors.TopicGone):
            await self._giving.forget(self._link, subscriber, topic_id)

    # Getting.

    async def _get(self, topic: str, subscriber: str, key: str) -> bytes:
        async with self._turns.of((topic, subscriber)):
            reading = Reading(self._link, self._places, topic, subscriber)
            message = await until_settled(reading, lambda: self._giving.under_key(self._link, reading, key))
        return format_message(message.value)

    async def _get_unnamed(self, place: Place) -> bytes:
        """One that comes while another is on its way is that one, sent again by a client that has lost patience."""
        task = self._unnamed.get(place)
        if task is None:
            task = self._unnamed[place] = asyncio.ensure_future(self._get(*place, NO_KEY))
            task.add_done_callback(lambda done: self._over(place, done))
        # A gateway that stops does not leave a get half done.
        return await asyncio.shield(task)

    def _over(self, place: Place, task: asyncio.Task[bytes]) -> None:
        del self._unnamed[place]
        if not task.cancelled():
            # Where nobody waits any more, nobody would ask for it.
            task.exception()


def _keyed(request: Request, operation: Operation) -> Keyed:
    # An id holds no space: no two clients have the same key.
    return Keyed(PRINCIPAL, f"{request.id} {request.subscriber}", operation)
