"""The cursor of a subscription by pattern: all topics that match, also those that are created later.

Order holds within a topic; topics take turns. Each topic has its own position: an ack is for the topic of the message
that it names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from oncemq.client.consumer.cursor import Decoded, decode_next, rewound
from oncemq.client.consumer.fetch_buffer import FetchBuffer
from oncemq.client.consumer.filter import Filter
from oncemq.client.runtime.flow import Flow
from oncemq.protocol import errors
from oncemq.protocol.commands import BY_PATTERN, GetAny
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import AnyPart, GetAnyReply, GetReply, OpenReply, Reply, expect


class _Position:
    """How far a consumer is in one of the topics. All offsets below each number have reached that state."""

    __slots__ = ("ack_sent", "acked", "buffer", "delivered", "filtered_end", "finished", "wanted_end")

    def __init__(self, part: AnyPart) -> None:
        self.buffer = FetchBuffer(part.topic, part.acked)
        self.delivered = self.finished = self.ack_sent = self.acked = part.acked
        #: The end of the last message that the filter let through, and of what the filter has seen.
        self.wanted_end = self.filtered_end = 0

    def finish(self, upto: int) -> None:
        self.finished = max(self.finished, upto)
        self.skip_filtered()

    def skip_filtered(self) -> None:
        """What is not wanted is finished when everything before it is."""
        if self.finished >= self.delivered >= self.wanted_end:
            self.delivered = self.finished = max(self.finished, self.filtered_end)

    @property
    def owes_ack(self) -> bool:
        return self.finished > self.ack_sent

    @property
    def is_unconfirmed(self) -> bool:
        return self.finished > self.acked

    @property
    def is_settled(self) -> bool:
        """The broker knows everything about it."""
        return not self.buffer and self.acked >= self.buffer.position and self.finished <= self.acked


#: Topic id and the offset below which everything is finished.
_Acks = tuple[tuple[int, int], ...]


class PatternCursor:
    """How far a consumer is in each matching topic. See `Cursor` for what the methods promise."""

    def __init__(self, pattern: str, subscriber: str, auto_ack: bool) -> None:
        self.topic = pattern
        self.subscriber = subscriber
        self._auto_ack = auto_ack
        self._epoch = 0
        #: By topic id: topics that are not settled.
        self._positions: dict[int, _Position] = {}
        #: Topics with buffered messages, in the order in which they take turns.
        self._turns: deque[_Position] = deque()
        #: The last get has brought everything that there was.
        self._is_complete = True
        #: Acks that the caller was promised, and that a new opening must not forget.
        self._promised: dict[int, int] = {}
        #: Those in the last ack command, and in the last get command.
        self._acks_alone: _Acks = ()
        self._acks_with_get: _Acks = ()
        #: What the broker had confirmed when the last get was sent, by topic id.
        self._acked_before_get: dict[int, int] = {}
        #: Messages that the subscription has lost to quotas, by topic id, as far as is known.
        self._dropped: dict[int, int] = {}

    @property
    def key(self) -> str:
        return self.subscriber + BY_PATTERN + self.topic

    @property
    def dropped(self) -> int:
        return sum(self._dropped.values())

    # Opening.

    def open(self, reply: OpenReply) -> None:
        self._epoch = reply.epoch
        self._is_complete = True

    def promise(self, *, sought: bool) -> None:
        if sought:
            self._promised = {}
        for topic_id, position in self._positions.items():
            if position.is_unconfirmed and not sought:
                self._promised[topic_id] = position.finished

    @property
    def has_promised(self) -> bool:
        return bool(self._promised)

    def clear(self) -> None:
        self._turns.clear()
        self._positions.clear()

    # What the caller does.

    def mark_delivered(self, last: Message, batch: Sequence[Message]) -> None:
        for message in batch or (last,):
            position = self._positions.get(message.topic_id)
            if position is not None:
                position.delivered = max(position.delivered, message.offset + 1)

    def finish_delivered(self, last: Message, batch: Sequence[Message], is_done: bool = True) -> None:
        self.mark_delivered(last, batch)
        if self._auto_ack and is_done:
            for message in batch or (last,):
                position = self._positions.get(message.topic_id)
                if position is not None:
                    position.finish(message.offset + 1)

    def finish(self, message: Message | int | None) -> int:
        if message is None:
            for position in self._positions.values():
                position.finish(position.delivered)
        else:
            known = self._find_delivered(message)
            if known is not None:
                self._positions[known.topic_id].finish(known.offset + 1)
        return 0

    def _find_delivered(self, message: Message | int) -> Message | None:
        """None: it was delivered before a seek, or the broker has its ack."""
        if not isinstance(message, Message):
            raise TypeError(f"a Message is required, not {type(message).__name__}: an offset does not name its topic")
        position = self._positions.get(message.topic_id)
        return message if position is not None and message.offset < position.delivered else None

    # Transactions.

    def acks_for_transaction(self, message: Message | int | None) -> dict[int, int]:
        if message is not None:
            known = self._find_delivered(message)
            if known is None:
                raise ValueError(
                    "this message was not delivered yet, or will be delivered again because another transaction failed"
                )
            return {known.topic_id: known.offset + 1}
        return {key: each.delivered for key, each in self._positions.items() if each.delivered > each.finished}

    def mark_committed(self, topic_id: int, upto: int) -> None:
        position = self._positions.get(topic_id)
        if position is not None:
            position.finished = max(position.finished, upto)
            position.acked = max(position.acked, upto)
            position.ack_sent = max(position.ack_sent, upto)

    def is_ahead_of(self, claims: Mapping[int, int]) -> bool:
        positions = list(self._positions.items())
        return any(each.delivered > max(each.finished, claims.get(key, 0)) for key, each in positions)

    def rewind(self, claims: Mapping[int, int]) -> None:  # noqa: ARG002
        return None

    # Acks.

    @property
    def owes_ack(self) -> bool:
        return bool(self._promised) or any(position.owes_ack for position in self._positions.values())

    @property
    def is_unconfirmed(self) -> bool:
        return bool(self._promised) or any(position.is_unconfirmed for position in self._positions.values())

    def ack_command(self) -> GetAny:
        for position in self._positions.values():
            # Acks that travel with a get may be dropped with it.
            position.ack_sent = position.acked
        self._acks_alone = self._take_acks()
        return self._command(0, 0, self._acks_alone)

    def _take_acks(self) -> _Acks:
        """Return what is to be acked, and mark it as sent."""
        acks, self._promised = self._promised, {}
        for topic_id, position in self._positions.items():
            if position.owes_ack:
                position.ack_sent = acks[topic_id] = max(position.finished, acks.get(topic_id, 0))
        return tuple(acks.items())

    def take_ack_reply(self, reply: Reply) -> None:  # noqa: ARG002
        self._confirm(self._acks_alone)

    def take_ack_failure(self) -> None:
        self._restore(self._acks_alone)

    def _confirm(self, acks: _Acks) -> None:
        for topic_id, upto in acks:
            position = self._positions.get(topic_id)
            if position is not None:
                position.acked = max(position.acked, upto)
                if position.is_settled:
                    del self._positions[topic_id]

    def _restore(self, acks: _Acks) -> None:
        """The broker was unreachable: later acks include these."""
        for topic_id, upto in acks:
            position = self._positions.get(topic_id)
            if position is not None:
                position.ack_sent = position.acked
            else:
                self._promised[topic_id] = max(upto, self._promised.get(topic_id, 0))

    # Gets.

    @property
    def is_buffered(self) -> bool:
        return bool(self._turns)

    def wants_more(self, prefetch_bytes: int) -> bool:
        return not self._is_complete and sum(each.buffer.buffered_bytes for each in self._turns) < prefetch_bytes

    def get_command(self, bytes_max: int, wait_ms: int, with_acks: bool = True) -> GetAny:
        self._acks_with_get = self._take_acks() if with_acks else ()
        self._acked_before_get = {topic_id: position.acked for topic_id, position in self._positions.items()}
        return self._command(bytes_max, wait_ms, self._acks_with_get)

    def _command(self, bytes_max: int, wait_ms: int, acks: _Acks) -> GetAny:
        positions = tuple((topic_id, position.buffer.position) for topic_id, position in self._positions.items())
        return GetAny(self.topic, self.subscriber, self._epoch, positions, bytes_max, wait_ms, acks)

    def take_get_reply(self, reply: Reply, payloads: Sequence[Frame]) -> None:
        found = expect(reply, GetAnyReply)
        for part in found.parts:
            acked = self._acked_before_get.get(part.topic_id, 0)
            if part.acked < acked:
                what = f"offset {acked - 1} of '{part.topic}' was acked, and the broker is at {part.acked}"
                raise rewound(self.subscriber, self.topic, what)
        self._confirm(self._acks_with_get)
        self._is_complete = found.is_all
        frames = iter(payloads)
        for part in found.parts:
            self._take_part(part, frames)

    def _take_part(self, part: AnyPart, frames: Iterable[Frame]) -> None:
        position = self._positions.get(part.topic_id)
        if position is None:
            position = self._positions[part.topic_id] = _Position(part)
        self._dropped[part.topic_id] = part.dropped
        buffer = position.buffer
        payloads = [frame for _, frame in zip(part.batches, frames, strict=False)]
        had_some = bool(buffer)
        start = buffer.position
        reply = GetReply(part.topic_id, part.next_position, part.end_offset, part.acked, part.batches, part.dropped)
        buffer.take(reply, payloads)
        self._is_complete = self._is_complete and buffer.position == part.next_position != start
        if buffer and not had_some:
            self._turns.append(position)

    def take_get_failure(self) -> None:
        self._restore(self._acks_with_get)

    def take_refusal(self, error: errors.OnceMQError) -> None:
        """Acks of what was delivered can't be out of range: there is nothing to correct."""

    # The filter.

    def decode(self, wanted: Filter | None) -> Flow[Decoded]:
        """The topic stays first until this is done: a caller that is interrupted finds it there. A topic that can't be
        decoded gets its next turn after the others."""
        position = self._turns[0]
        try:
            decoded = yield from decode_next(position.buffer, wanted)
        except Exception:
            self._turns.rotate(-1)
            raise
        if self._turns and self._turns[0] is position:
            self._turns.popleft()
            if position.buffer:
                self._turns.append(position)
        return decoded

    def note_filtered(self, decoded: Decoded, *, is_last_open: bool) -> tuple[int, int]:  # noqa: ARG002
        position = self._positions.get(decoded.topic_id)
        if position is None:
            # Dropped while it was decoded.
            return decoded.filtered_end, decoded.filtered_end
        seen = (max(position.delivered, position.filtered_end), decoded.filtered_end)
        if decoded.messages:
            position.wanted_end = decoded.messages[-1].offset + 1
        position.filtered_end = decoded.filtered_end
        position.skip_filtered()
        return seen
