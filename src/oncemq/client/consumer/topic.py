"""The cursor of a subscription to one topic.

An ack never runs ahead of what the caller has finished: with `auto_ack` a message is finished when the next one is
requested. Acks travel with the next get, or alone if that would take long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oncemq.client.consumer.cursor import Decoded, decode_next, rewound
from oncemq.client.consumer.fetch_buffer import FetchBuffer
from oncemq.client.consumer.filter import Filter
from oncemq.client.core.validation import offset_of
from oncemq.client.runtime.flow import Flow
from oncemq.protocol import errors
from oncemq.protocol.commands import Ack, Get
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import AckReply, GetReply, OpenReply, Reply, expect


class TopicCursor:
    """How far a consumer is in one topic. See `Cursor` for what the methods promise."""

    def __init__(self, topic: str, subscriber: str, auto_ack: bool) -> None:
        self.topic = topic
        self.subscriber = subscriber
        self.buffer = FetchBuffer(topic, 0)
        #: Messages that the subscription has lost to its topic's quota, ever.
        self.dropped = 0
        self.acked = 0
        self._auto_ack = auto_ack
        self._topic_id = 0
        self._epoch = 0
        #: All offsets below were delivered, are finished, and are acked by a command that was sent.
        self._delivered = 0
        self._finished = 0
        self._ack_sent = 0
        #: What the broker had confirmed when the last get was sent.
        self._acked_before_get = 0
        #: Everything below was delivered or filtered out.
        self._filtered_end = 0
        #: The last message below that the filter let through.
        self._last_wanted = -1
        #: Acks that the caller was promised, and that a new opening must not forget.
        self._promised = 0

    @property
    def key(self) -> str:
        return self.subscriber

    # Opening.

    def open(self, reply: OpenReply) -> None:
        self._topic_id, self._epoch = reply.topic_id, reply.epoch
        self.acked = self._ack_sent = reply.acked
        self._finished = max(reply.acked, self._promised)
        self.buffer.end_offset = self._finished
        self._move_to(self._finished)

    def _move_to(self, position: int) -> None:
        self.buffer.position = self._delivered = self._filtered_end = position

    def promise(self, *, sought: bool) -> None:
        self._promised = self._finished if self._finished > self.acked and not sought else 0

    @property
    def has_promised(self) -> bool:
        return self._promised > 0

    def clear(self) -> None:
        self.buffer.clear()

    # What the caller does.

    def mark_delivered(self, last: Message, batch: Sequence[Message]) -> None:  # noqa: ARG002
        # An ack may have moved on beyond it.
        if last.offset >= self._delivered:
            self._delivered = last.offset + 1

    def finish_delivered(self, last: Message, batch: Sequence[Message], is_done: bool = True) -> None:
        offset = last.offset
        if offset >= self._delivered:
            self._delivered = offset + 1
        if self._auto_ack:
            finished = self._delivered if is_done else batch[0].offset if batch else offset
            if finished > self._finished:
                self._finished = finished
        if is_done and offset == self._last_wanted:
            self._skip_filtered()

    def finish(self, message: Message | int | None) -> int:
        upto = self._delivered if message is None else offset_of(message, self._topic_id) + 1
        if upto > self._delivered:
            return upto
        if upto > self._finished:
            self._finished = upto
        return 0

    def has_seen(self, upto: int) -> bool:
        """It is known that the topic has all offsets below `upto`."""
        return upto <= max(self.buffer.position, self.buffer.end_offset)

    def skip_to(self, upto: int) -> tuple[tuple[int, int], bool]:
        """Skip the messages below `upto` that were not delivered. Returns their range, and whether a get that was sent
        before asks for some of them."""
        skipped = (self._delivered, upto)
        self._delivered = upto
        self._finished = max(self._finished, upto)
        is_beyond = upto > self.buffer.position
        if is_beyond:
            self._ack_sent = self.acked
        self.buffer.skip_to(upto)
        return skipped, is_beyond

    # Transactions.

    def acks_for_transaction(self, message: Message | int | None) -> dict[int, int]:
        upto = self._delivered if message is None else offset_of(message, self._topic_id) + 1
        if upto > self._delivered:
            raise ValueError(
                f"offset {upto - 1} was not delivered yet, or will be delivered again because another transaction "
                "failed; a transaction acks what was delivered"
            )
        return {self._topic_id: upto}

    def mark_committed(self, topic_id: int, upto: int) -> None:  # noqa: ARG002
        self._finished = max(self._finished, upto)
        self.acked = max(self.acked, upto)
        self._ack_sent = max(self._ack_sent, upto)

    def is_ahead_of(self, claims: Mapping[int, int]) -> bool:
        return self._delivered > max(self._finished, claims.get(self._topic_id, 0))

    def rewind(self, claims: Mapping[int, int]) -> tuple[int, int]:
        position = max(self._finished, claims.get(self._topic_id, 0))
        self.buffer.clear()
        self._ack_sent = self.acked
        self._move_to(position)
        return self._topic_id, position

    # Acks.

    @property
    def owes_ack(self) -> bool:
        return self._finished > self._ack_sent

    @property
    def is_unconfirmed(self) -> bool:
        return self._finished > self.acked

    def ack_command(self) -> Ack:
        self._ack_sent = self._finished
        return Ack(self._topic_id, self.subscriber, self._epoch, self._finished)

    def take_ack_reply(self, reply: Reply) -> None:
        if isinstance(reply, AckReply):
            self.acked = max(self.acked, reply.acked)

    def take_ack_failure(self) -> None:
        self._ack_sent = self.acked

    # Gets.

    @property
    def is_buffered(self) -> bool:
        return bool(self.buffer)

    def wants_more(self, prefetch_bytes: int) -> bool:
        return not self.buffer.is_caught_up and self.buffer.buffered_bytes < prefetch_bytes

    def get_command(self, bytes_max: int, wait_ms: int, with_acks: bool = True) -> Get:
        ack = self._finished if with_acks and self._finished > self._ack_sent else -1
        if ack >= 0:
            self._ack_sent = ack
        self._acked_before_get = self.acked
        return Get(self._topic_id, self.subscriber, self._epoch, self.buffer.position, bytes_max, wait_ms, ack)

    def take_get_reply(self, reply: Reply, payloads: Sequence[Frame]) -> None:
        found = expect(reply, GetReply)
        if found.acked < self._acked_before_get:
            what = f"offset {self._acked_before_get - 1} was acked, and the broker is at {found.acked}"
            raise rewound(self.subscriber, self.topic, what)
        self.acked = max(self.acked, found.acked)
        self.dropped = max(self.dropped, found.dropped)
        self.buffer.take(found, payloads)

    def take_get_failure(self) -> None:
        self._ack_sent = self.acked

    def take_refusal(self, error: errors.OnceMQError) -> None:
        self._ack_sent = self.acked
        if isinstance(error, errors.OffsetOutOfRange):
            self._finished = self.acked

    # The filter.

    def decode(self, wanted: Filter | None) -> Flow[Decoded]:
        return decode_next(self.buffer, wanted)

    def note_filtered(self, decoded: Decoded, *, is_last_open: bool) -> tuple[int, int]:
        seen = (self._filtered_end, decoded.filtered_end)
        self._filtered_end = decoded.filtered_end
        if decoded.messages:
            self._last_wanted = decoded.messages[-1].offset
        elif not is_last_open:
            self._skip_filtered()
        return seen

    def _skip_filtered(self) -> None:
        """Nothing behind the last message that was delivered is wanted."""
        self._delivered = max(self._delivered, self._filtered_end)
        if self._auto_ack:
            self._finished = max(self._finished, self._filtered_end)
