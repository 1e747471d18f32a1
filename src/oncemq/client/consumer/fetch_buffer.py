"""Batches that a get or a read has brought: their checksums were verified, and they are not decoded yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, decode_stored
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import BatchHead, GetReply

#: Small batches are decoded together, until there are this many messages.
_DECODE_MESSAGES = 256
#: A payload that arrives damaged this often in a row is not the network's fault.
_DAMAGES_MAX = 3


class FetchBuffer:
    """A buffer of batches of one topic, in order, and the position behind them."""

    def __init__(self, topic: str, position: int) -> None:
        self.topic = topic
        self.topic_id = 0
        #: The offset of the next get or read.
        self.position = position
        self.end_offset = 0
        self.buffered_bytes = 0
        self._batches: deque[tuple[BatchHead, bytes]] = deque()
        self._damages = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def is_caught_up(self) -> bool:
        return self.position >= self.end_offset

    def take(self, reply: GetReply, payloads: Sequence[Frame]) -> None:
        """Buffer the batches of a reply. A damaged payload, and what follows it, is fetched again. Raises
        DamagedInTransit if that does not help."""
        self.topic_id = reply.topic_id
        for head, frame in zip(reply.batches, payloads, strict=True):
            payload = frame if isinstance(frame, bytes) else bytes(frame)
            if checksum(payload) != head.checksum:
                self._note_damage(head)
                return
            self._batches.append((head, payload))
            self.buffered_bytes += len(payload)
            self.position = head.first_offset + head.count
        self._damages = 0
        self.position = reply.next_position
        self.end_offset = reply.end_offset

    def _note_damage(self, head: BatchHead) -> None:
        self._damages += 1
        if self._damages >= _DAMAGES_MAX:
            raise errors.DamagedInTransit(
                f"the messages of '{self.topic}' from offset {head.first_offset} on don't match their checksum"
            )

    def decode(self) -> list[Message]:
        """Return the next messages: a whole batch, or several small ones. A batch that can't be decoded stays, and its
        error is raised when it is the first."""
        messages: list[Message] = []
        while self._batches and len(messages) < _DECODE_MESSAGES:
            try:
                decoded = self._decode_first()
            except errors.OnceMQError:
                if messages:
                    break
                raise
            self._drop_first()
            messages = messages + decoded if messages else decoded
        return messages

    def decode_wanted(self, wanted: Callable[[Message], bool]) -> tuple[list[Message], int]:
        """Return the next messages that are wanted, and the offset behind the last one that was examined. If `wanted`
        raises, nothing is lost: that batch stays, and the error is raised when it is the first."""
        found: list[Message] = []
        end = -1
        while self._batches and len(found) < _DECODE_MESSAGES:
            head, _ = self._batches[0]
            try:
                found = found + [message for message in self._decode_first() if wanted(message)]
            except Exception:
                if end >= 0:
                    break
                raise
            self._drop_first()
            end = head.first_offset + head.count
        return found, end

    def batches(self) -> list[tuple[BatchHead, bytes]]:
        """Return all batches, undecoded. They stay."""
        return list(self._batches)

    def drop(self, batches: Sequence[tuple[BatchHead, bytes]]) -> bool:
        """Remove these batches, which were the first. False: the buffer was cleared in the meantime."""
        if len(self._batches) < len(batches) or any(
            ours is not theirs for ours, theirs in zip(self._batches, batches, strict=False)
        ):
            return False
        for _ in batches:
            self._drop_first()
        return True

    def take_all(self) -> list[tuple[BatchHead, bytes]]:
        """Remove and return all batches, undecoded."""
        batches = list(self._batches)
        self.clear()
        return batches

    def _decode_first(self) -> list[Message]:
        head, payload = self._batches[0]
        return decode_stored(payload, self.topic, self.topic_id, head.first_offset, head.time_ms, head.skip, head.count)

    def _drop_first(self) -> None:
        _, payload = self._batches.popleft()
        self.buffered_bytes -= len(payload)

    def skip_to(self, position: int) -> None:
        """Drop messages below this offset. The caller must not buffer the reply to an earlier get."""
        while self._batches:
            head, payload = self._batches[0]
            below = position - head.first_offset
            if below <= 0:
                break
            if below < head.count:
                rest = BatchHead(position, head.count - below, head.skip + below, head.time_ms, head.checksum)
                self._batches[0] = (rest, payload)
                break
            self._drop_first()
        self._damages = 0
        self.position = max(self.position, position)

    def clear(self) -> None:
        self._batches.clear()
        self.buffered_bytes = 0
