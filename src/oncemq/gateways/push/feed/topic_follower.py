"""One topic that the gateway follows, by a durable subscription of its own: what is committed goes to the feed.

A message is acked after it was sent: once a second, or after many, since each ack is a write. A gateway that was killed
in between sends it again: subscribers know it by its offset.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncemq.client.push.frames import batch_frame, batch_header, message_frame, message_header, next_header
from oncemq.gateways.link import Link, expect
from oncemq.gateways.push.feed.feed_socket import SLOT_BYTES
from oncemq.gateways.push.subscribers.registry import NAMESPACE
from oncemq.gateways.push.subscription_calls import batches_of, own
from oncemq.protocol import errors
from oncemq.protocol.batch import split
from oncemq.protocol.commands import START_EARLIEST, START_NEW, Ack, Get, RegistrySet
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import BatchHead, GetReply

if TYPE_CHECKING:
    from oncemq.gateways.push.feed.feed import Feed

log = logging.getLogger("oncemq.push")

_GET_BYTES = 1024 * 1024
#: A get waits so long at the broker; longer where there are many topics.
_WAIT_MS = 2_000
_WAIT_MS_MAX = 30_000
_WAIT_MS_PER_TOPIC = 20
_PAUSE_S = 0.2
_PAUSE_S_MAX = 5.0
#: Twice as long each time; and after so many times the longest one without a fence, as short as at first.
_TAKE_BACK_TIMES_MAX = 10
_PEACE_TIMES = 2
#: Messages that are sent before others have their turn, and from one heartbeat to the next.
_TURN_MESSAGES = 500
_BEAT_MESSAGES = 10_000
_ACK_MESSAGES = 10_000
#: When what was sent is noted so often a second, that is exact enough; and so often in the time that is asked for.
_MARK_S = 0.05
_MARKS = 100

#: The subscription has to be made again,
_ANEW = (
    errors.Sought,
    errors.NotSubscribed,
    errors.SubscriptionExpired,
    errors.RangeGone,
    errors.OffsetOutOfRange,
)
#: and its topic too: of that nothing was sent yet.
_GONE = (errors.TopicGone, errors.TopicUnknown)


class Following:
    def __init__(self, feed: Feed, link: Link, topic: str) -> None:
        self.topic = topic
        #: What SUB sockets have subscribed to and that means this topic.
        self.prefixes: set[bytes] = set()
        #: Reliable subscribers that need it.
        self.holders: set[object] = set()
        self.idle_since_s = time.monotonic()
        self.topic_id = 0
        #: The offset of the next message that will be sent.
        self.position = -1
        #: The broker has answered lately: heartbeats are true.
        self.is_live = False
        #: A message waits for a slow subscriber.
        self.is_held_up = False
        self._feed = feed
        self._link = link
        self._subscriber = feed.settings.feed_subscriber
        self._epoch = 0
        self._acked = 0
        self._acking: asyncio.Task[None] | None = None
        self._frame = message_frame(topic)
        self._batch_frame = batch_frame(topic)
        self._messages = feed.listening.open(self._frame)
        self._batches = feed.listening.open(self._batch_frame)
        self._start = START_NEW
        self._since_beat = 0
        self._retransmit_s = feed.settings.retransmit_ms / 1000
        #: (when, position by then), the oldest first.
        self._marks: deque[tuple[float, int]] = deque()
        self._take_back_s = feed.take_back_s
        self._fenced_s = 0.0
        self.task = asyncio.ensure_future(self._run())

    @property
    def is_wanted(self) -> bool:
        return bool(self.prefixes or self.holders)

    def sent_before(self, at_s: float) -> int:
        """Everything below this offset was sent before that time, which does not fall."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= at_s:
            marks.popleft()
        return marks[0][1] if marks and marks[0][0] <= at_s else -1

    # Its life.

    def keep_running(self) -> None:
        """Whatever has ended it: it is wanted."""
        if self.task.done():
            self.task = asyncio.ensure_future(self._run())

    def close(self) -> None:
        """Nobody wants it. Await the task afterwards."""
        self.task.cancel()
        self._feed.listening.close(self._messages)
        self._feed.listening.close(self._batches)

    async def _run(self) -> None:
        pause_s = _PAUSE_S
        while True:
            try:
                await self._feed.until_ended(self.topic)
                await self._begin()
                pause_s = _PAUSE_S
                await self._go_on()
            except (*_ANEW, *_GONE) as error:
                log.debug("'%s' is followed anew: %s", self.topic, error.text)
                self._start = START_EARLIEST if isinstance(error, _GONE) else START_NEW
                self._forget_opening()
                await asyncio.sleep(_PAUSE_S)
            except errors.Fenced:
                self._forget_opening()
                await self._let_be()
            except Exception as error:
                self.is_live = False
                self._acked = -1
                if not isinstance(error, errors.OnceMQError):
                    log.exception("the feed of '%s' has failed", self.topic)
                self._feed.counters.trouble("feed_waits", f"the feed of '{self.topic}' has to wait: {error}")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _forget_opening(self) -> None:
        self._epoch = 0
        self.is_live = False

    async def _let_be(self) -> None:
        """Somebody else has taken the subscription. Two who take it from each other do so less and less often."""
        now_s, first_s = time.monotonic(), self._feed.take_back_s
        longest_s = first_s * _TAKE_BACK_TIMES_MAX
        if now_s - self._fenced_s > _PEACE_TIMES * longest_s:
            self._take_back_s = first_s
        pause_s, self._take_back_s = self._take_back_s, min(2 * self._take_back_s, longest_s)
        text = f"somebody else is '{self._subscriber}' on '{self.topic}': its feed is taken back in {pause_s:g} s"
        self._feed.counters.trouble("feed_fenced", text, level=logging.ERROR)
        await asyncio.sleep(pause_s)
        self._fenced_s = time.monotonic()

    async def _begin(self) -> None:
        """In this order: whatever dies meanwhile, the next gateway knows what there is to end."""
        if self._epoch:
            return
        await self._link.operate(RegistrySet(NAMESPACE, self._feed.key_of(self.topic), b"{}"))
        _, opened = await own(self._link, self.topic, self._subscriber, self._start)
        if opened.topic_id != self.topic_id:
            self._marks.clear()
        self.topic_id, self._epoch, self.position = opened.topic_id, opened.epoch, opened.acked
        self._acked = opened.acked
        self._start = START_NEW
        self.mark()
        self.is_live = True
        self.beat()

    async def _go_on(self) -> None:
        getting = asyncio.ensure_future(self._get(self.position))
        try:
            while True:
                reply, payloads = await getting
                self.is_live = True
                batches = batches_of(self.topic, reply, payloads)
                # The next ones come while these are sent; what may be acked with that was sent before.
                getting = asyncio.ensure_future(self._get(reply.next_position))
                for head, payload in batches:
                    await self._send(head, payload)
                if reply.next_position > self.position:
                    self.position = reply.next_position
                if batches:
                    self.mark()
        finally:
            getting.cancel()

    async def _get(self, position: int) -> tuple[GetReply, Sequence[Frame]]:
        ack = -1
        if self.position - self._acked >= _ACK_MESSAGES:
            ack = self._acked = self.position
        wait_ms = min(max(_WAIT_MS, self._feed.topics_count * _WAIT_MS_PER_TOPIC), _WAIT_MS_MAX)
        command = Get(self.topic_id, self._subscriber, self._epoch, position, _GET_BYTES, wait_ms, ack)
        reply, payloads = await self._link.ask(command)
        return expect(reply, GetReply), payloads

    def ack_soon(self) -> None:
        """What was sent since the last ack."""
        if self.is_live and self._acked < self.position and (self._acking is None or self._acking.done()):
            self._acked = self.position
            self._acking = asyncio.ensure_future(self._ack(self.position))

    async def _ack(self, upto: int) -> None:
        try:
            await self._link.ask(Ack(self.topic_id, self._subscriber, self._epoch, upto))
        except errors.OnceMQError:
            # Whatever stands in its way, the get will meet it too.
            self._acked = -1

    def mark(self) -> None:
        """Note the time, for those who want to know what was sent before."""
        if not self.holders and self._marks:
            return
        now_s = time.monotonic()
        if len(self._marks) > 1 and now_s - self._marks[-2][0] < max(_MARK_S, self._retransmit_s / _MARKS):
            self._marks.pop()
        self._marks.append((now_s, self.position))
        # Nobody asks for what lies further back.
        self.sent_before(now_s - self._retransmit_s)

    # What goes out.

    async def _send(self, head: BatchHead, payload: bytes) -> None:
        socket = self._feed.socket
        if self._batches.count:
            header = batch_header(head, self.topic_id)
            if not socket.try_send(self._batch_frame, header, payload):
                await self._send_later(self._batch_frame, header, payload)
            if len(payload) > SLOT_BYTES:
                self._take_slots(self._batch_frame, head.first_offset + head.count, len(payload))
        if self._messages.count:
            await self._send_each(head, payload)
        self.position = head.first_offset + head.count
        self._feed.counters.add("feed_sent", head.count)
        self._since_beat += head.count
        if self._since_beat >= _BEAT_MESSAGES:
            self.beat()
        socket.look()
        await asyncio.sleep(0)

    async def _send_each(self, head: BatchHead, payload: bytes) -> None:
        socket, topic_id, frame = self._feed.socket, self.topic_id, self._frame
        try:
            columns = split(payload)
        except errors.OnceMQError as error:
            text = f"offset {head.first_offset} of '{self.topic}' can't be decoded: {error.text}"
            self._feed.counters.trouble("feed_undecodable", text)
            return
        at, ends, times_ms, first = columns.values_at, columns.value_offsets, columns.times_ms, head.first_offset
        try_send = socket.try_send
        for index in range(head.skip, head.skip + head.count):
            offset = first + index - head.skip
            time_ms = head.time_ms if times_ms is None else times_ms[index]
            header = message_header(offset, time_ms, topic_id)
            content = payload[at + ends[index] : at + ends[index + 1]]
            if not try_send(frame, header, content):
                await self._send_later(frame, header, content)
            if len(content) > SLOT_BYTES:
                self._take_slots(frame, offset + 1, len(content))
            if index % _TURN_MESSAGES == _TURN_MESSAGES - 1:
                socket.look()
                await asyncio.sleep(0)

    async def _send_later(self, *frames: bytes) -> None:
        self.is_held_up = True
        try:
            await self._feed.socket.send(*frames)
        finally:
            self.is_held_up = False

    def _take_slots(self, frame: bytes, position: int, size: int) -> None:
        """A queue is bounded by the number of its messages. Heartbeats stand behind a large one, so that it counts for
        as much as it is."""
        header = self._next_header(position)
        for _ in range(size // SLOT_BYTES):
            if not self._feed.socket.try_send(frame, header):
                return

    def beat(self) -> bool:
        """Tell listeners which offset comes next: so they see that the last message is missing. False: somebody's
        queue is full."""
        if not self.is_live:
            return True
        self._since_beat = 0
        header, try_send = self._next_header(self.position), self._feed.socket.try_send
        is_sent = not self._messages.count or try_send(self._frame, header)
        return (not self._batches.count or try_send(self._batch_frame, header)) and is_sent

    def _next_header(self, position: int) -> bytes:
        return next_header(position, time.time_ns() // 1_000_000, self.topic_id)
