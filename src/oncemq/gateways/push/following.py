"""One topic that the gateway follows, by a durable subscription of its own: what is committed goes to the feed.

A message is acked after it was sent: once a second, or after many, since each ack is a write. A gateway that was killed
in between sends it again: subscribers know it by its offset.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from oncemq import errors
from oncemq.client.push_frames import batch_frame, batch_header, message_frame, message_header, next_header
from oncemq.engine.commands import START_NEW, Ack, Get, Open, RegistrySet, Subscribe
from oncemq.engine.replies import BatchHead, GetReply, OpenReply
from oncemq.gateways.link import Link, expect
from oncemq.message import checksum, split

if TYPE_CHECKING:
    from oncemq.gateways.push.feed import Feed

log = logging.getLogger("oncemq.push")

NAMESPACE = "push"
_GET_BYTES = 1024 * 1024
#: A get waits so long at the broker; longer where there are many topics.
_WAIT_MS = 2_000
_WAIT_MS_MAX = 30_000
_WAIT_MS_PER_TOPIC = 20
_PAUSE_S = 0.2
_PAUSE_S_MAX = 5.0
#: Messages that are sent before others have their turn, and from one heartbeat to the next.
_TURN_MESSAGES = 500
_BEAT_MESSAGES = 10_000
_ACK_MESSAGES = 10_000
#: When what was sent is noted so often a second, that is exact enough.
_MARK_S = 0.05

#: The subscription has to be made again.
_ANEW = (
    errors.TopicGone, errors.TopicUnknown, errors.NotSubscribed, errors.SubscriptionExpired, errors.RangeGone,
    errors.OffsetOutOfRange,
)  # fmt: skip


class Following:
    def __init__(self, feed: Feed, link: Link, topic: str) -> None:
        self.topic = topic
        #: What SUB sockets have subscribed to and that means this topic.
        self.prefixes: set[bytes] = set()
        #: Reliable subscribers that need it.
        self.holders: set[object] = set()
        self.idle_since_s = time.monotonic()
        self.sends_messages = False
        self.sends_batches = False
        self.topic_id = 0
        #: The offset of the next message that will be sent.
        self.position = -1
        #: The broker has answered lately: heartbeats are true.
        self.is_live = False
        self._feed = feed
        self._link = link
        self._subscriber = feed.settings.feed_subscriber
        self._epoch = 0
        self._acked = 0
        self._acking: asyncio.Task[None] | None = None
        self._frame = message_frame(topic)
        self._batch_frame = batch_frame(topic)
        self._since_beat = 0
        #: (when, position by then), the oldest first.
        self._marks: deque[tuple[float, int]] = deque()
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

    async def _run(self) -> None:
        await self._feed.until_ended(self.topic)
        pause_s = _PAUSE_S
        while True:
            try:
                await self._begin()
                pause_s = _PAUSE_S
                await self._go_on()
            except (errors.Sought, *_ANEW) as error:
                log.debug("'%s' is followed anew: %s", self.topic, error.text)
                self._link_changed()
                await asyncio.sleep(_PAUSE_S)
            except errors.Fenced:
                self.is_live = False
                text = f"somebody else is '{self._subscriber}' on '{self.topic}': its feed ends here"
                self._feed.counters.trouble("feed_fenced", text, level=logging.ERROR)
                return
            except Exception as error:
                self.is_live = False
                self._acked = -1
                if not isinstance(error, errors.OnceMQError):
                    log.exception("the feed of '%s' has failed", self.topic)
                self._feed.counters.trouble("feed_waits", f"the feed of '{self.topic}' has to wait: {error}")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _link_changed(self) -> None:
        self._epoch = 0
        self.is_live = False

    async def _begin(self) -> None:
        """In this order: whatever dies meanwhile, the next gateway knows what there is to end."""
        if self._epoch:
            return
        await self._link.operate(RegistrySet(NAMESPACE, self._feed.key_of(self.topic), b"{}"))
        await self._link.operate(Subscribe(self.topic, self._subscriber, START_NEW))
        opened = expect(await self._link.operate(Open(self.topic, self._subscriber)), OpenReply)
        if opened.topic_id != self.topic_id:
            self._marks.clear()
        self.topic_id, self._epoch, self.position = opened.topic_id, opened.epoch, opened.acked
        self._acked = opened.acked
        self.mark()
        self.is_live = True
        self.beat()

    async def _go_on(self) -> None:
        getting = asyncio.ensure_future(self._get(self.position))
        try:
            while True:
                reply, payloads = await getting
                self.is_live = True
                batches = [(head, bytes(frame)) for head, frame in zip(reply.batches, payloads, strict=True)]
                for head, payload in batches:
                    if checksum(payload) != head.checksum:
                        raise errors.DamagedInTransit(f"offset {head.first_offset} of '{self.topic}'")
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

    async def _get(self, position: int) -> tuple[GetReply, list[bytes]]:
        ack = -1
        if self.position - self._acked >= _ACK_MESSAGES:
            ack = self._acked = self.position
        wait_ms = min(max(_WAIT_MS, self._feed.topics_count * _WAIT_MS_PER_TOPIC), _WAIT_MS_MAX)
        command = Get(self.topic_id, self._subscriber, self._epoch, position, _GET_BYTES, wait_ms, ack)
        reply, payloads = await self._link.ask(command)
        return expect(reply, GetReply), list(payloads)  # type: ignore[arg-type]

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
        if len(self._marks) > 1 and now_s - self._marks[-2][0] < _MARK_S:
            self._marks.pop()
        self._marks.append((now_s, self.position))

    # What goes out.

    async def _send(self, head: BatchHead, payload: bytes) -> None:
        socket = self._feed.socket
        if self.sends_batches:
            header = batch_header(head, self.topic_id)
            if not socket.try_send(self._batch_frame, header, payload):
                await socket.send(self._batch_frame, header, payload)
        if self.sends_messages:
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
                await socket.send(frame, header, content)
            if index % _TURN_MESSAGES == _TURN_MESSAGES - 1:
                socket.look()
                await asyncio.sleep(0)

    def beat(self) -> None:
        """Tell listeners which offset comes next: so they see that the last message is missing."""
        if not self.is_live:
            return
        self._since_beat = 0
        header = next_header(self.position, time.time_ns() // 1_000_000, self.topic_id)
        if self.sends_messages:
            self._feed.socket.try_send(self._frame, header)
        if self.sends_batches:
            self._feed.socket.try_send(self._batch_frame, header)
