"""One topic that the gateway follows, through a durable subscription of its own: new messages go to the feed.

Messages are acked after they were sent: once a second, or after many messages, since each ack is a write. After a crash
the gateway sends some of them again, and subscribers recognise them by their offsets.

If there are users, a topic is followed for a user, on behalf of one of its callers: the broker decides whether the user
may. The subscribers of the user get messages as long as it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncemq.client.gateway_api import Loss, loss_of
from oncemq.gateways.batches import verified_batches
from oncemq.gateways.link import Link
from oncemq.gateways.push.feed.topic_output import TopicOutput
from oncemq.gateways.push.subscribers.registry import note_followed
from oncemq.gateways.subscription import OpenSubscription, subscribe_and_open
from oncemq.gateways.tasks import report_failure, start, start_awaited
from oncemq.protocol import errors
from oncemq.protocol.commands import START_EARLIEST, START_NEW, Read
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import GetReply

if TYPE_CHECKING:
    from oncemq.gateways.push.feed.feed import Feed

log = logging.getLogger("oncemq.push")

_GET_BYTES = 1024 * 1024
#: How long a get waits at the broker; longer if there are many topics.
_WAIT_MS = 2_000
_WAIT_MS_MAX = 30_000
_WAIT_MS_PER_TOPIC = 20
_PAUSE_S = 0.2
_PAUSE_S_MAX = 5.0
#: The pause before the subscription is taken back doubles each time, up to this multiple of the first one. It is reset
#: after this many times the longest pause without being fenced.
_TAKE_BACK_TIMES_MAX = 10
_PEACE_TIMES = 2
#: Errors that concern the user, and when the broker is asked again after one of them.
_NOT_ALLOWED = (errors.Unauthenticated, errors.Forbidden, errors.QuotaReached)
_NOT_ALLOWED_S = 30.0
_ACK_MESSAGES = 10_000
#: How precisely send times are noted: at least this interval, and at most this many marks per retransmission time.
_MARK_S = 0.05
_MARKS = 100


class TopicFollower:
    def __init__(self, feed: Feed, link: Link, topic: str, output: TopicOutput, user: str = "") -> None:
        """`link` is its own, if it has a user: its caller may change."""
        self.topic = topic
        self.user = user
        #: Whether the user may follow the topic. None: it is not known yet.
        self.verdict: bool | None = None if user else True
        #: The registry may list it, and the subscription may exist.
        self.is_noted = not user
        #: When it was refused.
        self.refused_s = 0.0
        #: Subscriptions of SUB sockets that mean this topic.
        self.prefixes: set[object] = set()
        #: Reliable subscribers that need it.
        self.holders: set[object] = set()
        self.idle_since_s = time.monotonic()
        self.topic_id = 0
        #: The offset of the next message that will be sent.
        self.position = -1
        #: The broker has replied lately: heartbeats are correct.
        self.is_live = False
        self._feed = feed
        self._link = link
        self._output = output
        self._subscriber = feed.settings.feed_subscriber_of(user)
        self._subscription: OpenSubscription | None = None
        #: All offsets below were acked, or an ack of them is in flight; -1: unknown.
        self._acked = 0
        self._acking: asyncio.Task[None] | None = None
        self._start = START_NEW
        self._retransmit_s = feed.settings.retransmit_ms / 1000
        #: (time, position at that time), the oldest first.
        self._marks: deque[tuple[float, int]] = deque()
        self._pause_s = _PAUSE_S
        self._take_back_s = feed.take_back_s
        self._fenced_s = 0.0
        self.task = start(self._run(), "a push feed")

    @property
    def is_wanted(self) -> bool:
        return bool(self.prefixes or self.holders)

    @property
    def is_held_up(self) -> bool:
        """A message waits for a slow subscriber."""
        return self._output.is_held_up

    @property
    def caller(self) -> str:
        """For whom it is followed; empty if there are no users."""
        return self._link.caller if self.user else ""

    def sent_before(self, at_s: float) -> int:
        """Return an offset below which everything was sent before a time. The times of successive calls must not
        fall."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= at_s:
            marks.popleft()
        return marks[0][1] if marks and marks[0][0] <= at_s else -1

    # The task.

    def keep_running(self) -> None:
        """Start the task again if it has ended."""
        if self.task.done():
            self.task = start(self._run(), "a push feed")

    def close(self) -> None:
        """Stop following. Await the task afterwards."""
        self.task.cancel()

    def use(self, caller: str) -> None:
        """Follow it for another caller of the same user, and ask the broker again."""
        if self.user:
            self._link.caller = caller
        self.verdict = None
        self._subscription = None
        self.task.cancel()
        self.task = start(self._run(), "a push feed")

    async def _run(self) -> None:
        while True:
            try:
                await self._feed.wait_until_ended(self.user, self.topic)
                subscription = self._subscription or await self._open()
                self._pause_s = _PAUSE_S
                await self._follow(subscription)
            except Exception as error:
                await self._recover(error)

    async def _recover(self, error: Exception) -> None:
        self.is_live = False
        loss = loss_of(error)
        if self._feed.access is not None and isinstance(error, _NOT_ALLOWED):
            self._subscription = None
            self.verdict, self.refused_s = False, time.monotonic()
            self._feed.access.note_refused(self, error)
            await asyncio.sleep(_NOT_ALLOWED_S)
        elif loss is Loss.FENCED:
            self._subscription = None
            await self._wait_to_take_back()
        elif loss is not None:
            log.debug("'%s' is opened again: %s", self.topic, error)
            # No message of a topic that was created again was sent yet.
            self._start = START_EARLIEST if loss is Loss.TOPIC_GONE else START_NEW
            self._subscription = None
            await asyncio.sleep(_PAUSE_S)
        else:
            self._acked = -1
            if not isinstance(error, errors.OnceMQError):
                report_failure("a push feed", error)
            self._feed.counters.report("feed_waits", f"the feed of '{self.topic}' has to wait: {error}")
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)

    async def _wait_to_take_back(self) -> None:
        """Another gateway has taken the subscription. The pause grows, so that two gateways that take it from each
        other do so less and less often."""
        now_s, first_s = time.monotonic(), self._feed.take_back_s
        longest_s = first_s * _TAKE_BACK_TIMES_MAX
        if now_s - self._fenced_s > _PEACE_TIMES * longest_s:
            self._take_back_s = first_s
        pause_s, self._take_back_s = self._take_back_s, min(2 * self._take_back_s, longest_s)
        text = f"another consumer uses '{self._subscriber}' on '{self.topic}': its feed is taken back in {pause_s:g} s"
        self._feed.counters.report("feed_fenced", text, level=logging.ERROR)
        await asyncio.sleep(pause_s)
        self._fenced_s = time.monotonic()

    async def _open(self) -> OpenSubscription:
        """The registry's entry is written before the subscription is created: after a crash in between, the next
        gateway knows what to delete."""
        if self.user:
            await self._ask_for_right()
        self.is_noted = True
        await note_followed(self._feed.link, self._feed.settings.name, self.caller, self.topic)
        opened, _ = await subscribe_and_open(self._link, self.topic, self._subscriber, self._start)
        if opened.topic_id != self.topic_id:
            self._marks.clear()
        self._subscription = opened
        self.topic_id, self.position = opened.topic_id, opened.acked
        self._acked = opened.acked
        self._start = START_NEW
        self.mark()
        self.is_live = True
        if not self.verdict:
            self.verdict = True
            if self._feed.access is not None:
                self._feed.access.note_allowed()
        self.send_heartbeat()
        return opened

    async def _ask_for_right(self) -> None:
        """Without the right to read, nothing needs to be written."""
        with contextlib.suppress(errors.TopicUnknown):
            await self._link.query(Read(self.topic, START_NEW, 0), GetReply)

    async def _follow(self, subscription: OpenSubscription) -> None:
        getting = start_awaited(self._get(subscription, self.position))
        try:
            while True:
                reply, payloads = await getting
                self.is_live = True
                batches = verified_batches(self.topic, reply, payloads)
                # The next batches are fetched while these are sent. That get acks only what was sent before.
                getting = start_awaited(self._get(subscription, reply.next_position))
                for head, payload in batches:
                    await self._output.send(self.topic_id, head, payload)
                    self.position = head.first_offset + head.count
                if reply.next_position > self.position:
                    self.position = reply.next_position
                if batches:
                    self.mark()
        finally:
            getting.cancel()

    async def _get(self, subscription: OpenSubscription, position: int) -> tuple[GetReply, Sequence[Frame]]:
        ack = -1
        if self.position - self._acked >= _ACK_MESSAGES:
            ack = self._acked = self.position
        wait_ms = min(max(_WAIT_MS, self._feed.topics_count * _WAIT_MS_PER_TOPIC), _WAIT_MS_MAX)
        return await subscription.get(position, _GET_BYTES, wait_ms, ack)

    def ack_soon(self) -> None:
        """Ack what was sent since the last ack."""
        if self._subscription is None or not self.is_live or self._acked >= self.position:
            return
        if self._acking is None or self._acking.done():
            self._acked = self.position
            self._acking = start(self._ack(self._subscription, self.position), "an ack of a push feed")

    async def _ack(self, subscription: OpenSubscription, upto: int) -> None:
        try:
            await subscription.ack(upto)
        except errors.OnceMQError:
            # The get meets the same obstacle, and handles it.
            self._acked = -1

    def mark(self) -> None:
        """Note the time and the position, for `sent_before`."""
        if not self.holders and self._marks:
            return
        now_s = time.monotonic()
        if len(self._marks) > 1 and now_s - self._marks[-2][0] < max(_MARK_S, self._retransmit_s / _MARKS):
            self._marks.pop()
        self._marks.append((now_s, self.position))
        # Older marks are not needed.
        self.sent_before(now_s - self._retransmit_s)

    def send_heartbeat(self) -> bool:
        """Tell listeners the next offset, so that they notice if they have missed the last message. False: the queue
        of one of them is full."""
        return not self.is_live or self._output.send_heartbeat(self.topic_id, self.position)
