"""A reliable subscriber's cursor on one topic: what it has acked, and what the broker knows of it.

The broker keeps one position, below which everything is acked. Acks beyond the position are held here until the gap
before them is closed. They are lost with this process; then those messages are sent again, and the subscriber
recognises them by their offsets.

    closed          at first, and when the broker's state has changed: a seek, a deleted topic; it is opened again
    open            this gateway owns the subscription
    fenced          another consumer has taken the subscription over; the next hello takes it back
    unsubscribed    the subscription was deleted; unless a hello comes first, the cursor is dropped
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from oncemq.client.gateway_api import DELETED, Loss, loss_of
from oncemq.gateways.batches import verified_batches
from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed.topic_follower import TopicFollower
from oncemq.gateways.subscription import OpenSubscription, subscribe_and_open, unsubscribe
from oncemq.gateways.tasks import start_awaited
from oncemq.protocol import errors
from oncemq.protocol.batch import decode_stored
from oncemq.protocol.commands import START_EARLIEST, START_NEW, Read
from oncemq.protocol.message import Message
from oncemq.protocol.replies import GetReply

#: Maximum number of held acks. Further messages are sent again later.
_HELD_MAX = 10_000
_GET_BYTES = 128 * 1024

T = TypeVar("T")


class SubscriberCursor:
    def __init__(
        self, link: Link, counters: Counters, follower: TopicFollower, subscriber: str, start: int = START_EARLIEST
    ) -> None:
        self.topic = follower.topic
        self.subscriber = subscriber
        self.follower = follower
        #: Where the subscription starts if it does not exist. Once it has existed, that is the earliest message: its
        #: topic was deleted and created again, and all messages in it are new.
        self.start = start
        #: The number of the registry's entry that lists it; -1: none yet.
        self.entry = -1
        #: The registry lists it, so that its subscription may be created.
        self.is_registered = False
        self.topic_id = 0
        #: All offsets below are acked by the subscriber.
        self.acked = 0
        #: All offsets below are sent again at once: the subscriber was away.
        self.missed_below = 0
        self.is_open = False
        self.is_fenced = False
        self.is_unsubscribed = False
        #: Opening it created the subscription.
        self.is_new = False
        #: Changes when the subscription was opened again: what was read before is not valid any more.
        self.epoch = 0
        #: When the broker is next asked about it.
        self.check_due_s = 0.0
        #: Nothing is sent before this time.
        self.not_before_s = 0.0
        #: When a message was last sent again: the cursors of a subscriber take turns.
        self.served_s = 0.0
        self._link = link
        self._counters = counters
        self._is_dropped = False
        #: Held while the subscription is opened or deleted.
        self._lock = asyncio.Lock()
        self._subscription: OpenSubscription
        #: The topic that the feed followed when the broker was last asked.
        self._followed_id = 0
        #: All offsets below are acked at the broker.
        self._confirmed = 0
        self._held: set[int] = set()
        #: The end of the topic when it was last read.
        self._seen_end = 0
        self._progress_s = 0.0
        self._confirming: asyncio.Task[None] | None = None

    # The subscription at the broker.

    @property
    def is_followed(self) -> bool:
        """The feed sends new messages of this topic, and knows when it sent them."""
        return self.follower.is_live and self.follower.topic_id == self.topic_id

    @property
    def is_in_doubt(self) -> bool:
        """The feed has found another topic of this name."""
        return self.is_open and self.follower.topic_id not in (self._followed_id, self.topic_id)

    async def check(self, *, take_back: bool = False) -> None:
        """Ask the broker whether the subscription is unchanged, and open it if it is not open. With `take_back`, also
        open one that another consumer has taken over. Raises as the link does."""
        async with self._lock:
            followed_id = self.follower.topic_id
            if self.is_open:
                # A refusal closes the cursor, and it is opened again below.
                with contextlib.suppress(errors.Refused):
                    await self._check_open_subscription()
            if take_back:
                self.is_fenced = self.is_unsubscribed = False
            if not (self.is_open or self.is_fenced or self.is_unsubscribed or self._is_dropped):
                await self._open_or_busy()
            self._followed_id = followed_id

    async def _check_open_subscription(self) -> None:
        await self._ack()
        if not self.is_followed:
            await self._learn_end()
            self.mark_all_missed()

    async def _open_or_busy(self) -> None:
        try:
            await self._open()
        except errors.Refused as error:
            if loss_of(error) in DELETED:
                # It was deleted at this very moment. The next attempt creates it again.
                raise errors.Busy(error.text) from None
            raise

    async def _open(self) -> None:
        opened, created = await subscribe_and_open(self._link, self.topic, self.subscriber, self.start)
        self._subscription = opened
        if opened.topic_id != self.topic_id:
            self._seen_end = 0
        self.is_new, self.start = created.created, START_EARLIEST
        self.topic_id, self.epoch = opened.topic_id, opened.epoch
        self.acked = self._confirmed = opened.acked
        self._held.clear()
        self.missed_below = 0
        self.is_open = True
        if not self.is_followed:
            await self._learn_end()
        self.mark_all_missed()

    async def _learn_end(self) -> None:
        read = Read(self.topic, START_NEW, 0, 0, self.topic_id)
        reply = await self._close_if_refused(self._link.query(read, GetReply))
        self._seen_end = max(self._seen_end, reply.end_offset)

    async def _close_if_refused(self, request: Awaitable[T]) -> T:
        epoch = self.epoch
        try:
            return await request
        except errors.Refused as error:
            # If the subscription was opened again meanwhile, the error is about the former opening.
            if self.is_open and self.epoch == epoch:
                self._close(error)
            raise

    def _close(self, error: errors.Refused) -> None:
        self.is_open = False
        self.check_due_s = 0.0
        loss = loss_of(error)
        if loss is Loss.UNSUBSCRIBED:
            self.is_unsubscribed = True
            text = f"'{self.subscriber}' was unsubscribed from '{self.topic}'; its next hello subscribes it again"
            self._counters.report("subscriptions_ended", text)
        elif loss is Loss.FENCED:
            self.is_fenced = True
            text = f"another consumer uses '{self.subscriber}' on '{self.topic}'; its next hello takes it back"
            self._counters.report("subscriptions_fenced", text)

    async def delete(self) -> None:
        """Delete the subscription. Raises as the link does."""
        async with self._lock:
            await unsubscribe(self._link, self.topic, self.subscriber)
            self.drop()

    def drop(self) -> None:
        """Close it for good. The subscription stays."""
        self.is_open, self._is_dropped = False, True

    # Acks of the subscriber.

    @property
    def end_offset(self) -> int:
        """Messages from here on were not sent yet, so that the subscriber can't have them."""
        follower = self.follower
        sent = follower.position if follower.topic_id == self.topic_id else 0
        return max(sent, self._seen_end, self.acked)

    def refuse_unless_open(self) -> None:
        """Raises Fenced, NotSubscribed, Busy."""
        if self.is_unsubscribed:
            raise errors.NotSubscribed(f"'{self.subscriber}' is not subscribed to '{self.topic}' any more")
        if self.is_fenced:
            raise errors.Fenced(
                f"another consumer uses '{self.subscriber}' on '{self.topic}'; send hello to take the subscription back"
            )
        if not self.is_open:
            raise errors.Busy(f"the subscription of '{self.subscriber}' to '{self.topic}' is being opened again")

    def note_acks(self, offsets: Iterable[int], upto: int = 0) -> None:
        """Note the acks of single offsets, and of all offsets below `upto`. Raises OffsetOutOfRange; then nothing is
        noted."""
        new = {offset for offset in offsets if offset >= self.acked}
        highest = max(upto - 1, *new, -1)
        if highest >= self.end_offset:
            raise errors.OffsetOutOfRange(f"'{self.topic}' has no message {highest} yet")
        self._advance(max(upto, self.acked), new)

    def skip_to(self, offset: int) -> None:
        """Messages below have expired or were acked: do not wait for their acks."""
        if offset > self.acked:
            self._advance(offset, set())

    def _advance(self, acked: int, new: set[int]) -> None:
        if acked > self.acked and self._held:
            self._held = {offset for offset in self._held if offset >= acked}
        held = self._held
        while acked in new or acked in held:
            held.discard(acked)
            acked += 1
        if acked > self.acked:
            self.acked, self._progress_s = acked, time.monotonic()
        ahead = sorted(offset for offset in new if offset > acked and offset not in held)
        held.update(ahead[: _HELD_MAX - len(held)])

    def has_ack(self, offset: int) -> bool:
        """Return whether the subscriber has acked an offset."""
        return offset < self.acked or offset in self._held

    async def confirm(self) -> int:
        """Wait until the acks are durable at the broker. Returns the broker's position. Raises as the link does."""
        wanted, epoch = self.acked, self.epoch
        while self._confirmed < wanted and self.epoch == epoch:
            if self._confirming is None or self._confirming.done():
                self._confirming = start_awaited(self._ack())
            # Callers that come meanwhile share the next one.
            await asyncio.shield(self._confirming)
        return self._confirmed

    async def _ack(self) -> None:
        subscription = self._subscription
        acked = await self._close_if_refused(subscription.ack(self.acked))
        if self.epoch == subscription.epoch:
            self._confirmed = max(self._confirmed, acked)

    # Messages that are not acked.

    def is_due(self, now_s: float, retransmit_s: float) -> bool:
        """Return whether messages must be sent again: some were sent at least `retransmit_s` ago, and no ack has come
        since. Then all of those are due."""
        if not self.is_open or now_s < self.not_before_s:
            return False
        before_s = now_s - retransmit_s
        if self._progress_s <= before_s and self.is_followed:
            self.missed_below = max(self.missed_below, self.follower.sent_before(before_s))
        return self.acked < self.missed_below

    def mark_all_missed(self) -> None:
        """The subscriber was away: send again all messages so far, without waiting for acks."""
        self.missed_below = max(self.missed_below, self.end_offset)

    def restart(self) -> None:
        """The subscriber has said hello: it has the messages below the position, and no others."""
        self._held.clear()
        self.not_before_s = 0.0
        self.mark_all_missed()

    async def read(self) -> list[Message]:
        """Return the next messages that are not acked. Raises as the link does."""
        subscription = self._subscription
        request = subscription.get(self.acked, _GET_BYTES, 0, self.acked)
        reply, payloads = await self._close_if_refused(request)
        if self.epoch != subscription.epoch:
            return []
        self._confirmed = max(self._confirmed, reply.acked)
        self._seen_end = max(self._seen_end, reply.end_offset)
        messages: list[Message] = []
        for head, payload in verified_batches(self.topic, reply, payloads):
            try:
                messages += decode_stored(
                    payload, self.topic, self.topic_id, head.first_offset, head.time_ms, head.skip, head.count
                )
            except errors.Undecodable as error:
                if messages:
                    break
                # As the feed does.
                self._counters.report("feed_undecodable", error.text)
                self.skip_to(head.first_offset + head.count)
        if not messages:
            self.skip_to(reply.next_position)
            self.missed_below = self.acked
        return messages
