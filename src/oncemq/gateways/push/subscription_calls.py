"""The gateway's dealings with one durable subscription of the broker, its own or a reliable subscriber's.

Holds no state, and knows nothing of sockets.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.gateways.link import Link, expect
from oncemq.protocol import errors
from oncemq.protocol.batch import checksum
from oncemq.protocol.commands import Open, Subscribe
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import BatchHead, GetReply, OpenReply, SubscribeReply

#: There is no such subscription any more.
GONE = (errors.TopicGone, errors.TopicUnknown, errors.NotSubscribed, errors.SubscriptionExpired)


async def own(link: Link, topic: str, subscriber: str, start: int) -> tuple[SubscribeReply, OpenReply]:
    """Make it where there is none, and own it. Raises what the broker refuses, and KindMismatch."""
    made = expect(await link.operate(Subscribe(topic, subscriber, start)), SubscribeReply)
    opened = expect(await link.operate(Open(topic, subscriber)), OpenReply)
    if opened.sharing is not None:
        raise errors.KindMismatch(f"'{subscriber}' on '{topic}' is a shared subscription")
    return made, opened


def batches_of(topic: str, reply: GetReply, payloads: Sequence[Frame]) -> list[tuple[BatchHead, bytes]]:
    """What a get has brought. Raises DamagedInTransit."""
    batches = [(head, bytes(frame)) for head, frame in zip(reply.batches, payloads, strict=True)]
    for head, payload in batches:
        if checksum(payload) != head.checksum:
            raise errors.DamagedInTransit(f"offset {head.first_offset} of '{topic}'")
    return batches
