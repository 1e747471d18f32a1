"""What the feed sends of one topic. Several users may follow the topic, each with a subscription of its own: then each
message is sent once, by the follower that has it first."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from oncemq.gateways.push.feed.feed_socket import SLOT_BYTES
from oncemq.protocol import errors
from oncemq.protocol.batch import split
from oncemq.protocol.push_feed import batch_frame, batch_header, message_frame, message_header, next_header
from oncemq.protocol.replies import BatchHead

if TYPE_CHECKING:
    from oncemq.gateways.push.feed.feed import Feed

#: Messages that are sent before other tasks run, and from one heartbeat to the next.
_TURN_MESSAGES = 500
_HEARTBEAT_MESSAGES = 10_000


class TopicOutput:
    def __init__(self, feed: Feed, topic: str) -> None:
        self.topic = topic
        #: How many followers use it.
        self.followers = 0
        #: A message waits for a slow subscriber.
        self.is_held_up = False
        self._feed = feed
        self._frame = message_frame(topic)
        self._batch_frame = batch_frame(topic)
        self._messages = feed.listeners.open(self._frame)
        self._batches = feed.listeners.open(self._batch_frame)
        #: The topic that was sent last, and the offset after its last message; -1: nothing was sent.
        self._topic_id = 0
        self._position = -1
        #: The topic that had the name before.
        self._former_id = 0
        #: Held while a batch is sent.
        self._lock = asyncio.Lock()
        self._since_heartbeat = 0

    def close(self) -> None:
        self._feed.listeners.close(self._messages)
        self._feed.listeners.close(self._batches)

    async def send(self, topic_id: int, head: BatchHead, payload: bytes) -> None:
        """Send a batch, unless another follower has sent it."""
        async with self._lock:
            if not self._is_sent(topic_id, head):
                await self._send(topic_id, head, payload)

    def _is_sent(self, topic_id: int, head: BatchHead) -> bool:
        if self.followers == 1:
            return False
        if topic_id == self._topic_id:
            return head.first_offset + head.count <= self._position
        return topic_id == self._former_id

    async def _send(self, topic_id: int, head: BatchHead, payload: bytes) -> None:
        socket, position = self._feed.socket, head.first_offset + head.count
        if self._batches.count:
            header = batch_header(head, topic_id)
            if not socket.try_send(self._batch_frame, header, payload):
                await self._send_later(self._batch_frame, header, payload)
            if len(payload) > SLOT_BYTES:
                self._take_slots(self._batch_frame, topic_id, position, len(payload))
        if self._messages.count:
            await self._send_each(topic_id, head, payload)
        if topic_id != self._topic_id:
            self._former_id, self._topic_id = self._topic_id, topic_id
        self._position = position
        self._feed.counters.add("feed_sent", head.count)
        self._since_heartbeat += head.count
        if self._since_heartbeat >= _HEARTBEAT_MESSAGES:
            self.send_heartbeat(topic_id, position)
        socket.read_soon()
        await asyncio.sleep(0)

    async def _send_each(self, topic_id: int, head: BatchHead, payload: bytes) -> None:
        socket, frame = self._feed.socket, self._frame
        try:
            columns = split(payload)
        except errors.OnceMQError as error:
            text = f"offset {head.first_offset} of '{self.topic}' can't be decoded: {error.text}"
            self._feed.counters.report("feed_undecodable", text)
            return
        at, ends, times_ms, first = columns.values_at, columns.value_offsets, columns.times_ms, head.first_offset
        try_send = socket.try_send
        for index in range(head.skip, head.skip + head.count):
            offset = first + index - head.skip
            time_ms = head.time_ms if times_ms is None else times_ms[index]
            header = message_header(offset, time_ms, topic_id)
            content = columns.values[at + ends[index] : at + ends[index + 1]]
            if not try_send(frame, header, content):
                await self._send_later(frame, header, content)
            if len(content) > SLOT_BYTES:
                self._take_slots(frame, topic_id, offset + 1, len(content))
            if index % _TURN_MESSAGES == _TURN_MESSAGES - 1:
                socket.read_soon()
                await asyncio.sleep(0)

    async def _send_later(self, *frames: bytes) -> None:
        self.is_held_up = True
        try:
            await self._feed.socket.send(*frames)
        finally:
            self.is_held_up = False

    def _take_slots(self, frame: bytes, topic_id: int, position: int, size: int) -> None:
        """A queue of ZeroMQ is bounded by its number of messages. After a large message, heartbeats are sent as
        padding, so that it counts according to its size."""
        header = _next_header(position, topic_id)
        for _ in range(size // SLOT_BYTES):
            if not self._feed.socket.try_send(frame, header):
                return

    def send_heartbeat(self, topic_id: int, position: int) -> bool:
        """Tell listeners the next offset, as far as a follower knows it. False: the queue of one of them is full."""
        self._since_heartbeat = 0
        if self.followers > 1 and topic_id == self._topic_id:
            # What others have still to send is not missing.
            position = self._position
        header, try_send = _next_header(position, topic_id), self._feed.socket.try_send
        is_sent = not self._messages.count or try_send(self._frame, header)
        return (not self._batches.count or try_send(self._batch_frame, header)) and is_sent


def _next_header(position: int, topic_id: int) -> bytes:
    return next_header(position, time.time_ns() // 1_000_000, topic_id)
