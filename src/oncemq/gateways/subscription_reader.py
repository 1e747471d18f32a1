"""A subscription that is read one message at a time, under the gateway's own epoch (subscription_cache.py)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from oncemq.client.gateway_api import STALE_EPOCH, Loss, loss_of
from oncemq.gateways.batches import verified_payload
from oncemq.gateways.subscription import OpenSubscription
from oncemq.gateways.subscription_cache import SubscriptionCache
from oncemq.protocol import errors
from oncemq.protocol.batch import decode_stored
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import GetReply

#: A get returns at least one batch. No more is needed.
_ONE_BATCH = 1
#: Attempts while another gateway consumes for the same subscriber, or the subscription is moved.
_ATTEMPTS = 8
#: The random pause before another attempt grows by this, from 0.
_PAUSE_S = 0.005

T = TypeVar("T")


class SubscriptionReader:
    """Every method raises Fenced, Sought or TopicGone once the epoch is not the subscription's any more. Then call
    `expire_epoch` and start again: `retry_when_stale` does so."""

    def __init__(self, cache: SubscriptionCache, topic: str, subscriber: str) -> None:
        self._cache = cache
        self._key = (topic, subscriber)
        self._stale_epoch = 0
        self._epoch = 0
        self.topic = topic
        self.subscriber = subscriber
        #: 0 until it is first opened.
        self.topic_id = 0
        #: All offsets below are acked, as the broker said last.
        self.acked = 0

    async def open(self) -> OpenSubscription:
        """Return the gateway's opening of the subscription. Raises what the broker refuses it with."""
        opened = await self._cache.open(self._key, self._stale_epoch)
        self._epoch, self.topic_id = opened.epoch, opened.topic_id
        return opened

    async def first(self) -> Message | None:
        """Return the first message that is not acked; None if there is none."""
        opened = await self.open()
        position = opened.acked
        try:
            message = await self._get(opened, position)
        except errors.RangeGone:
            # It was acked by another consumer, and is not stored any more. Opening tells the acked position.
            self.expire_epoch()
            opened = await self.open()
            position = opened.acked
            message = await self._get(opened, position)
        if self.acked > position:
            message = await self._get(opened, self.acked)
        return message

    async def confirm(self, upto: int) -> Message | None:
        """Ack all offsets below `upto`. Returns the message at or after it; None if there is none, or if `acked` is
        beyond `upto`."""
        opened = await self.open()
        try:
            return await self._get(opened, upto, upto)
        except errors.RangeGone:
            # Only messages below the acked position can be gone.
            self.acked = max(await opened.find_acked(), upto + 1)
            return None

    async def ack(self, upto: int) -> int:
        """Ack all offsets below `upto`. Returns the acked position."""
        self.acked = await (await self.open()).ack(upto)
        return self.acked

    async def wait(self, wait_ms: int) -> None:
        """Wait for a message that is not acked. The next read shows whether there is one."""
        opened = await self.open()
        with suppress(*STALE_EPOCH, errors.RangeGone):
            await opened.poll(self.acked, _ONE_BATCH, wait_ms)

    def expire_epoch(self) -> None:
        """Make the next use open the subscription again."""
        self._stale_epoch = self._epoch

    def drop(self) -> None:
        """Make the next caller open the subscription again."""
        self._cache.drop(self._key, self._epoch)

    async def _get(self, opened: OpenSubscription, position: int, ack: int = -1) -> Message | None:
        reply, payloads = await opened.get(position, _ONE_BATCH, 0, ack)
        self.acked = reply.acked
        return _first_message(self.topic, reply, payloads)


def _first_message(topic: str, reply: GetReply, payloads: Sequence[Frame]) -> Message | None:
    """Raises DamagedInTransit, and Undecodable."""
    if not reply.batches:
        return None
    head = reply.batches[0]
    payload = verified_payload(topic, head.first_offset, payloads[0], head.checksum)
    return decode_stored(payload, topic, reply.topic_id, head.first_offset, head.time_ms, head.skip, 1, head.count)[0]


async def retry_when_stale(
    reader: SubscriptionReader,
    consume: Callable[[], Awaitable[T]],
    *,
    names_offsets: bool = False,
    attempts: int = _ATTEMPTS,
) -> T:
    """Run `consume`; if the subscription changes its epoch meanwhile, start from the beginning, since an ack belongs to
    what was read under the same epoch.

    `names_offsets`: the caller has named offsets. After a seek, or in a topic that was created again, they mean
    nothing: this is raised, once, as Sought or TopicGone.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            return await consume()
        except (*STALE_EPOCH, errors.RegistryConflict) as error:
            if names_offsets and loss_of(error) in (Loss.SOUGHT, Loss.TOPIC_GONE):
                reader.drop()
                raise
            if attempt == attempts:
                raise
        reader.expire_epoch()
        await asyncio.sleep(random.uniform(0, _PAUSE_S * (attempt - 1)))
