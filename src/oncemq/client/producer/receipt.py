"""Receipts: what a producer gets back."""

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
    #: Offset of the first message.
    offset: int
    #: How many messages were stored.
    count: int
    #: When the broker stored them, in milliseconds since 1970.
    timestamp_ms: int
    #: How many subscriptions the messages are kept for.
    subscriptions: int
    #: How many batches they were sent in.
    batches: int = 1


def receipt_of(topic: str, reply: PutReply) -> Receipt:
    """Return the receipt for one batch."""
    return Receipt(topic, reply.topic_id, reply.first_offset, reply.count, reply.time_ms, reply.subscriptions)
