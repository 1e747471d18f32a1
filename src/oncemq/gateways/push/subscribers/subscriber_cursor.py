"""One reliable subscriber's place on one topic: what it has acknowledged, and what the broker knows of it.

The broker keeps a position, below which everything is done. Acks that run ahead of it are held here until they join
up; they are lost with this process, and then the message is sent once more: the subscriber knows it by its offset.

    to be opened    at first, and when the broker does not know the place as it was: a seek, a topic that was deleted
    open            its subscription is ours
    lost            somebody else has taken the subscription over: until the next hello it is not ours
    left            somebody has ended the subscription: unless a hello comes first, it is forgotten
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence

from oncemq.gateways.link import Link, expect
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed.topic_follower import Following
from oncemq.gateways.push.subscription_calls import GONE, batches_of, own
from oncemq.protocol import errors
from oncemq.protocol.batch import decode_batch
from oncemq.protocol.commands import START_EARLIEST, START_NEW, Ack, Command, Get, Read, Unsubscribe
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import AckReply, GetReply, Reply

#: Acks that are held at the most; others are asked for again.
_HELD_MAX = 10_000
_GET_BYTES = 128 * 1024


class Place:
    def __init__(
        self, link: Link, counters: Counters, following: Following, subscriber: str, start: int = START_EARLIEST
    ) -> None:
        self.topic = following.topic
        self.subscriber = subscriber
        self.following = following
        #: Where the subscription begins if there is none. Once it was there it begins at the earliest: then its topic
        #: was deleted and made again, and all that is in it is new.
        self.start = start
        #: The number of the registry's entry that names it; -1: none yet.
        self.entry = -1
        #: The registry has it, so that its subscription may be made.
        self.is_registered = False
        self.topic_id = 0
        #: Everything below is acknowledged.
        self.acked = 0
        #: Everything below is sent again at once: the subscriber was away.
        self.missed_below = 0
        self.is_open = False
        self.is_lost = False
        self.is_left = False
        #: The subscription was not there before.
        self.is_new = False
        #: Another one when somebody has moved the subscription: what was read before says nothing any more.
        self.epoch = 0
        #: The broker is asked about it then.
        self.look_again_s = 0.0
        #: Nothing is sent before.
        self.not_before_s = 0.0
        #: When something was sent again last: places take turns.
        self.served_s = 0.0
        self._link = link
        self._counters = counters
        self._is_ended = False
        #: One at a time opens it, or ends it.
        self._lock = asyncio.Lock()
        #: The topic that was followed when the broker was last asked.
        self._followed_id = 0
        #: The same as `acked`, by the broker's word.
        self._confirmed = 0
        self._held: set[int] = set()
        #: Where the topic ended when it was last read.
        self._seen_end = 0
        self._progress_s = 0.0
        self._confirming: asyncio.Task[None] | None = None

    # What the broker knows.

    @property
    def is_followed(self) -> bool:
        """The feed brings what comes, and tells when it was sent."""
        return self.following.is_live and self.following.topic_id == self.topic_id

    @property
    def is_in_doubt(self) -> bool:
        """The feed has met another topic of this name."""
        return self.is_open and self.following.topic_id not in (self._followed_id, self.topic_id)

    async def look(self, *, take_back: bool = False) -> None:
        """Ask the broker whether all is as it was, and open the place if not; also one that somebody else has taken
        over, with `take_back`. Raises as the link does."""
        async with self._lock:
            followed_id = self.following.topic_id
            if self.is_open:
                # What stands in the way is noted, and opening mends it.
                with contextlib.suppress(errors.Refused):
                    await self._check()
            if take_back:
                self.is_lost = self.is_left = False
            if not (self.is_open or self.is_lost or self.is_left or self._is_ended):
                try:
                    await self._open()
                except GONE as error:
                    # Somebody ends it at this very moment: another try makes it again.
                    raise errors.Busy(error.text) from None
            self._followed_id = followed_id

    async def _check(self) -> None:
        await self._ack()
        if not self.is_followed:
            await self._learn_end()
            self.missed_all()

    async def _open(self) -> None:
        made, opened = await own(self._link, self.topic, self.subscriber, self.start)
        if opened.topic_id != self.topic_id:
            self._seen_end = 0
        self.is_new, self.start = made.created, START_EARLIEST
        self.topic_id, self.epoch = opened.topic_id, opened.epoch
        self.acked = self._confirmed = opened.acked
        self._held.clear()
        self.missed_below = 0
        self.is_open = True
        if not self.is_followed:
            await self._learn_end()
        self.missed_all()

    async def _learn_end(self) -> None:
        reply, _ = await self._ask(Read(self.topic, START_NEW, 0, 0, self.topic_id))
        self._seen_end = max(self._seen_end, expect(reply, GetReply).end_offset)

    async def _ask(self, command: Command) -> tuple[Reply, Sequence[Frame]]:
        epoch = self.epoch
        try:
            return await self._link.ask(command)
        except errors.Refused as error:
            # Unless it was opened anew since: then this is old.
            if self.is_open and self.epoch == epoch:
                self._close(error)
            raise

    def _close(self, error: errors.Refused) -> None:
        self.is_open = False
        self.look_again_s = 0.0
        if isinstance(error, errors.NotSubscribed):
            self.is_left = True
            text = f"somebody has unsubscribed '{self.subscriber}' from '{self.topic}': only a hello brings it back"
            self._counters.trouble("places_left", text)
        if isinstance(error, errors.Fenced):
            self.is_lost = True
            text = f"somebody else consumes '{self.topic}' as '{self.subscriber}': its next hello takes it back"
            self._counters.trouble("places_lost", text)

    async def end(self) -> None:
        """End its subscription. Raises as the link does."""
        async with self._lock:
            with contextlib.suppress(*GONE):
                await self._link.operate(Unsubscribe(self.topic, self.subscriber))
            self.drop()

    def drop(self) -> None:
        """Nobody looks after it any more."""
        self.is_open, self._is_ended = False, True

    # What was acknowledged.

    @property
    def end_offset(self) -> int:
        """What lies from here on was not sent yet, so nobody can have it."""
        following = self.following
        sent = following.position if following.topic_id == self.topic_id else 0
        return max(sent, self._seen_end, self.acked)

    def check_open(self) -> None:
        """Raises Fenced, NotSubscribed, Busy."""
        if self.is_left:
            raise errors.NotSubscribed(f"'{self.subscriber}' is not subscribed to '{self.topic}' any more")
        if self.is_lost:
            raise errors.Fenced(f"somebody else consumes '{self.topic}' as '{self.subscriber}': hello takes it back")
        if not self.is_open:
            raise errors.Busy(f"the place of '{self.subscriber}' on '{self.topic}' is being opened again")

    def note(self, offsets: Iterable[int], upto: int = 0) -> None:
        """Raises OffsetOutOfRange; then nothing is noted."""
        new = {offset for offset in offsets if offset >= self.acked}
        highest = max(upto - 1, *new, -1)
        if highest >= self.end_offset:
            raise errors.OffsetOutOfRange(f"'{self.topic}' has no message {highest} yet")
        self._join_up(max(upto, self.acked), new)

    def pass_over(self, offset: int) -> None:
        """What lies below has expired, or was acknowledged: there is nothing to wait for."""
        if offset > self.acked:
            self._join_up(offset, set())

    def _join_up(self, acked: int, new: set[int]) -> None:
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

    def has(self, offset: int) -> bool:
        return offset < self.acked or offset in self._held

    async def confirm(self) -> int:
        """Until the broker has what is acknowledged; returns its position. Raises as the link does."""
        wanted, epoch = self.acked, self.epoch
        while self._confirmed < wanted and self.epoch == epoch:
            if self._confirming is None or self._confirming.done():
                self._confirming = asyncio.ensure_future(self._ack())
                self._confirming.add_done_callback(_take_note)
            # Those who come meanwhile share the next one.
            await asyncio.shield(self._confirming)
        return self._confirmed

    async def _ack(self) -> None:
        epoch = self.epoch
        reply, _ = await self._ask(Ack(self.topic_id, self.subscriber, epoch, self.acked))
        if self.epoch == epoch:
            self._confirmed = max(self._confirmed, expect(reply, AckReply).acked)

    # What was not.

    def is_due(self, now_s: float, retransmit_s: float) -> bool:
        """Something was sent so long ago that it should have been acknowledged, and no other ack has come since: then
        all of that is sent again."""
        if not self.is_open or now_s < self.not_before_s:
            return False
        before_s = now_s - retransmit_s
        if self._progress_s <= before_s and self.is_followed:
            self.missed_below = max(self.missed_below, self.following.sent_before(before_s))
        return self.acked < self.missed_below

    def missed_all(self) -> None:
        """The subscriber was away: what there is by now is sent again without waiting for acks."""
        self.missed_below = max(self.missed_below, self.end_offset)

    def is_back(self) -> None:
        """The subscriber has said hello: it has what is acknowledged in order, and nothing else."""
        self._held.clear()
        self.not_before_s = 0.0
        self.missed_all()

    async def read(self) -> list[Message]:
        """The next messages that are not acknowledged. Raises as the link does."""
        epoch = self.epoch
        command = Get(self.topic_id, self.subscriber, epoch, self.acked, _GET_BYTES, 0, self.acked)
        answered, payloads = await self._ask(command)
        reply = expect(answered, GetReply)
        if self.epoch != epoch:
            return []
        self._confirmed = max(self._confirmed, reply.acked)
        self._seen_end = max(self._seen_end, reply.end_offset)
        messages: list[Message] = []
        for head, payload in batches_of(self.topic, reply, payloads):
            stop = head.skip + head.count
            messages += decode_batch(
                payload, self.topic, self.topic_id, head.first_offset, head.time_ms, head.skip, stop
            )
        if not messages:
            self.pass_over(reply.next_position)
            self.missed_below = self.acked
        return messages


def _take_note(confirming: asyncio.Task[None]) -> None:
    """Whoever waited for it may have gone."""
    if not confirming.cancelled():
        confirming.exception()
