"""What a producer gets back."""

from __future__ import annotations

import msgspec

from oncemq.protocol.replies import PutReply


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Proof that messages are on the broker's disk.

    >>> client.put("orders", b"one pizza").offset
    0
    """

    topic: str
    topic_id: int
    #: Of the first message.
    offset: int
    #: Messages that were stored.
    count: int
    #: When the broker stored them, in milliseconds since 1970.
    timestamp_ms: int
    #: For how many subscriptions they are kept.
    subscriptions: int
    #: Batches in which they were sent.
    batches: int = 1


def receipt_of(topic: str, reply: PutReply) -> Receipt:
    return Receipt(topic, reply.topic_id, reply.first_offset, reply.count, reply.time_ms, reply.subscriptions)
