"""One reliable subscriber's place on one topic: what it has acknowledged, and what the broker knows of it.

The broker keeps a position, below which everything is done. Acks that run ahead of it are held here until they join
up; they are lost with this process, and then the message is sent once more: the subscriber knows it by its offset.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from oncemq import errors
from oncemq.engine.commands import Ack, Get, Open, Subscribe
from oncemq.engine.replies import AckReply, GetReply, OpenReply, SubscribeReply
from oncemq.gateways.link import Link, expect
from oncemq.gateways.push.following import Following
from oncemq.message import Message, checksum, decode_batch

#: Acks that are held at the most; others are asked for again.
_HELD_MAX = 10_000
_GET_BYTES = 256 * 1024


class Place:
    def __init__(self, link: Link, following: Following, subscriber: str) -> None:
        self.topic = following.topic
        self.subscriber = subscriber
        self.following = following
        self.topic_id = 0
        #: Everything below is acknowledged.
        self.acked = 0
        #: Everything below is sent again at once: the subscriber was away.
        self.missed_below = 0
        #: Somebody else consumes the subscription: until the next hello this is not ours.
        self.is_lost = False
        self.is_open = False
        #: The subscription was not there before.
        self.is_new = False
        #: Another one when somebody has moved the subscription: what was read before says nothing any more.
        self.epoch = 0
        self._link = link
        #: The same as `acked`, by the broker's word.
        self._confirmed = 0
        self._held: set[int] = set()
        #: Where the topic ended when it was last read.
        self._seen_end = 0
        self._progress_s = 0.0
        self._confirming: asyncio.Task[None] | None = None

    async def open(self, start: int) -> None:
        """Make the subscription where there is none, and own it. Raises what the broker refuses."""
        self.is_open = False
        made = expect(await self._link.operate(Subscribe(self.topic, self.subscriber, start)), SubscribeReply)
        self.is_new = made.created
        opened = expect(await self._link.operate(Open(self.topic, self.subscriber)), OpenReply)
        if opened.sharing is not None:
            raise errors.KindMismatch(f"'{self.subscriber}' on '{self.topic}' is a shared subscription")
        if opened.topic_id != self.topic_id:
            self._seen_end = 0
        self.topic_id, self.epoch = opened.topic_id, opened.epoch
        self.acked = self._confirmed = opened.acked
        self._held.clear()
        self.missed_below = 0
        self.is_open, self.is_lost = True, False

    # What was acknowledged.

    @property
    def end(self) -> int:
        """What lies from here on was not sent yet, so nobody can have it."""
        following = self.following
        sent = following.position if following.topic_id == self.topic_id else 0
        return max(sent, self._seen_end, self.acked)

    def note(self, offsets: Iterable[int], upto: int = 0) -> None:
        """Raises OffsetOutOfRange; then nothing is noted."""
        new = [offset for offset in offsets if offset >= self.acked]
        end = self.end
        if upto > end or any(offset >= end for offset in new):
            raise errors.OffsetOutOfRange(f"'{self.topic}' has no message {max([upto - 1, *new])} yet")
        if upto > self.acked:
            self._jump(upto)
        room = _HELD_MAX - len(self._held)
        # Those that join up don't stay.
        self._held.update(new if self.acked in new else new[: max(0, room)])
        self._join_up()

    def pass_over(self, offset: int) -> None:
        """What lies below has expired, or was acknowledged: there is nothing to wait for."""
        if offset > self.acked:
            self._jump(offset)
            self._join_up()

    def _jump(self, acked: int) -> None:
        self.acked = acked
        self._held = {offset for offset in self._held if offset >= acked}
        self._progress_s = time.monotonic()

    def _join_up(self) -> None:
        held, acked = self._held, self.acked
        while acked in held:
            held.discard(acked)
            acked += 1
        if acked > self.acked:
            self.acked = acked
            self._progress_s = time.monotonic()

    def has(self, offset: int) -> bool:
        return offset < self.acked or offset in self._held

    async def confirm(self) -> int:
        """Until the broker has what is acknowledged; returns its position. Raises as the link does."""
        wanted, epoch = self.acked, self.epoch
        while self._confirmed < wanted and self.epoch == epoch:
            if self._confirming is None or self._confirming.done():
                self._confirming = asyncio.ensure_future(self._ack())
            # Those who come meanwhile share the next one.
            await asyncio.shield(self._confirming)
        return self._confirmed

    async def _ack(self) -> None:
        command = Ack(self.topic_id, self.subscriber, self.epoch, self.acked)
        reply = expect((await self._link.ask(command))[0], AckReply)
        self._confirmed = max(self._confirmed, reply.acked)

    # What was not.

    def is_due(self, retransmit_s: float) -> bool:
        """Something was sent so long ago that it should have been acknowledged, and no other ack has come since: then
        all of that is sent again."""
        if not self.is_open or self.is_lost:
            return False
        before_s = time.monotonic() - retransmit_s
        following = self.following
        if self._progress_s <= before_s and following.topic_id == self.topic_id:
            self.missed_below = max(self.missed_below, following.sent_before(before_s))
        return self.acked < self.missed_below

    def missed_all(self) -> None:
        """The subscriber was away: what there is by now is sent again without waiting for acks."""
        self.missed_below = max(self.missed_below, self.end)

    async def read(self) -> list[Message]:
        """The next messages that are not acknowledged. Raises as the link does."""
        command = Get(self.topic_id, self.subscriber, self.epoch, self.acked, _GET_BYTES, 0, self.acked)
        answered, payloads = await self._link.ask(command)
        reply = expect(answered, GetReply)
        self._confirmed = max(self._confirmed, reply.acked)
        self._seen_end = max(self._seen_end, reply.end_offset)
        messages: list[Message] = []
        for head, frame in zip(reply.batches, payloads, strict=True):
            payload = bytes(frame)
            if checksum(payload) != head.checksum:
                raise errors.DamagedInTransit(f"offset {head.first_offset} of '{self.topic}'")
            stop = head.skip + head.count
            messages += decode_batch(
                payload, self.topic, self.topic_id, head.first_offset, head.time_ms, head.skip, stop
            )
        if not messages:
            self.pass_over(reply.next_position)
            self.missed_below = self.acked
        return messages
