"""The frames of a push gateway's live feed, as a SUB socket receives them (docs/push.md).

    message     [topic 0x00]           ["message OFFSET TIME_MS TOPIC_ID"]                        [content]
    heartbeat   [topic 0x00]           ["next OFFSET TIME_MS TOPIC_ID"]
    batch       [0x01 topic 0x00]      ["batch OFFSET TIME_MS TOPIC_ID COUNT SKIP CHECKSUM"]      [payload]
    heartbeat   [0x01 topic 0x00]      ["next OFFSET TIME_MS TOPIC_ID"]

ZeroMQ matches prefixes: the zero byte, which no name contains, keeps `order` from matching `orders`. Batches are for
clients that know the batch format (protocol/batch.py), and cost a fraction; a subscriber to a topic's name never gets
them.
"""

from __future__ import annotations

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.names import refuse_topic_name
from oncemq.protocol.replies import BatchHead

END = b"\0"
BATCHES = b"\x01"

_MESSAGE = b"message"
_NEXT = b"next"
_BATCH = b"batch"


def message_frame(topic: str) -> bytes:
    return topic.encode() + END


def batch_frame(topic: str) -> bytes:
    return BATCHES + topic.encode() + END


def message_header(offset: int, time_ms: int, topic_id: int) -> bytes:
    return b"message %d %d %d" % (offset, time_ms, topic_id)


def next_header(offset: int, time_ms: int, topic_id: int) -> bytes:
    return b"next %d %d %d" % (offset, time_ms, topic_id)


def batch_header(head: BatchHead, topic_id: int) -> bytes:
    numbers = (head.first_offset, head.time_ms, topic_id, head.count, head.skip, head.checksum)
    return b"batch %d %d %d %d %d %d" % numbers


class Header(msgspec.Struct, frozen=True):
    """The header of a batch or of a heartbeat."""

    topic_id: int
    #: The offset of the first message; in a heartbeat, of the topic's next message.
    offset: int
    #: None in a heartbeat.
    batch: BatchHead | None


def decode_header(frame: bytes) -> Header | None:
    """Decode the header of a batch or of a heartbeat; None: it is something else."""
    kind, *words = frame.split(b" ")
    if not all(word.isdigit() and len(word) <= 20 for word in words):
        return None
    numbers = [int(word) for word in words]
    if kind == _NEXT and len(numbers) == 3:
        return Header(numbers[2], numbers[0], None)
    if kind == _BATCH and len(numbers) == 6:
        offset, time_ms, topic_id, count, skip, checksum = numbers
        return Header(topic_id, offset, BatchHead(offset, count, skip, time_ms, checksum))
    return None


def topic_of(prefix: bytes) -> str | None:
    """Return the topic that a SUB socket subscribes to; None: the prefix is empty. Raises NameInvalid."""
    if not prefix:
        return None
    try:
        name = prefix.removeprefix(BATCHES).removesuffix(END).decode()
    except UnicodeDecodeError:
        raise errors.NameInvalid("a subscription of the feed is not UTF-8") from None
    refusal = refuse_topic_name(name)
    if refusal is not None:
        raise errors.NameInvalid(refusal.text)
    return name
