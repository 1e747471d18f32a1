"""A subscription, read one message at a time, under the gateway's own epoch (subscription_cache.py)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from oncemq.gateways.link import Link, expect
from oncemq.gateways.subscription_cache import Places
from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, decode_batch
from oncemq.protocol.commands import Ack, Get
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import AckReply, GetReply, OpenReply

#: A get brings one batch at least; more is not wanted.
_ONE_BATCH = 1


class Reading:
    """Every method raises Fenced, Sought or TopicGone where the epoch is not the subscription's any more: then
    `forget` it, and begin again with what is there."""

    def __init__(self, link: Link, places: Places, topic: str, subscriber: str) -> None:
        self._link = link
        self._places = places
        self._place = (topic, subscriber)
        self._stale_epoch = 0
        self._epoch = 0
        self.topic = topic
        self.subscriber = subscriber
        self.topic_id = 0
        #: Everything below was confirmed, by the broker's last word.
        self.acked = 0

    async def first(self) -> Message | None:
        """The first message that is not confirmed."""
        opened = await self._opened()
        try:
            message = await self._get(opened, opened.acked)
        except errors.RangeGone:
            # Confirmed meanwhile in another way, and not stored any more: opening tells where it stands.
            self.forget()
            opened = await self._opened()
            message = await self._get(opened, opened.acked)
        if self.acked > opened.acked:
            message = await self._get(opened, self.acked)
        return message

    async def confirm(self, upto: int) -> Message | None:
        """Everything below is done; the message at or behind it, unless more than that was confirmed before."""
        opened = await self._opened()
        try:
            return await self._get(opened, upto, upto)
        except errors.RangeGone:
            # Only what lies below the confirmed position can be gone; an ack of nothing tells where that is.
            self.acked = max(await self.ack(0), upto + 1)
            return None

    async def ack(self, upto: int) -> int:
        """Everything below is done. Returns where the subscription stands."""
        opened = await self._opened()
        command = Ack(opened.topic_id, self.subscriber, opened.epoch, upto)
        return self._note(opened, expect((await self._link.ask(command))[0], AckReply).acked)

    async def wait(self, wait_ms: int) -> None:
        """For a message that is not confirmed; whether there is one, the next look shows."""
        opened = await self._opened()
        command = Get(opened.topic_id, self.subscriber, opened.epoch, self.acked, _ONE_BATCH, wait_ms, -1)
        with suppress(errors.Fenced, errors.Sought, errors.TopicGone, errors.RangeGone):
            await self._link.wait(command)

    def forget(self) -> None:
        self._stale_epoch = self._epoch

    def drop(self) -> None:
        """Whoever comes next opens it anew."""
        self._places.drop(self._place, self._epoch)

    async def _opened(self) -> OpenReply:
        opened = await self._places.open(self._link, self._place, self._stale_epoch)
        self._epoch, self.topic_id = opened.epoch, opened.topic_id
        return opened

    async def _get(self, opened: OpenReply, position: int, ack: int = -1) -> Message | None:
        command = Get(opened.topic_id, self.subscriber, opened.epoch, position, _ONE_BATCH, 0, ack)
        answered, payloads = await self._link.ask(command)
        reply = expect(answered, GetReply)
        self._note(opened, reply.acked)
        return _first_message(self.topic, reply, payloads)

    def _note(self, opened: OpenReply, acked: int) -> int:
        self.acked = acked
        self._places.note_acked(self._place, opened.epoch, acked)
        return acked


def _first_message(topic: str, reply: GetReply, payloads: Sequence[Frame]) -> Message | None:
    """Raises DamagedInTransit."""
    if not reply.batches:
        return None
    head, payload = reply.batches[0], bytes(payloads[0])
    if checksum(payload) != head.checksum:
        raise errors.DamagedInTransit(f"message {head.first_offset} of '{topic}' does not match its checksum")
    found = decode_batch(payload, topic, reply.topic_id, head.first_offset, head.time_ms, head.skip, head.skip + 1)
    return found[0]
