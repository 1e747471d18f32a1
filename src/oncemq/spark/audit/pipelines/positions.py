"""Compares the subscription of a stream, and the topics, with the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.spark.audit.pipelines.checkpoint import Checkpoint


class BrokerPositions(msgspec.Struct, frozen=True):
    broker: str
    #: Topic → (id, the offset of its next message, the first that is stored).
    topics: dict[str, tuple[int, int, int]]
    #: (topic, subscriber) → everything below is acked.
    acked: dict[tuple[str, str], int]


def read_positions(client: Client) -> BrokerPositions:
    """Read before the checkpoint: a running query acks only what its checkpoint contains already."""
    acked: dict[tuple[str, str], int] = {}
    for each in client.subscriptions():
        key = (each.topic, each.subscriber)
        acked[key] = max(acked.get(key, 0), each.acked)
    topics = {each.name: (each.topic_id, each.end_offset, each.first_offset) for each in client.topics()}
    return BrokerPositions(client.health().broker_id, topics, acked)


#: (kind, topic, offset, detail)
PositionFault = tuple[str, str, int, str]


def compare_positions(
    positions: BrokerPositions, checkpoint: Checkpoint, subscriptions: list[str], remarks: list[str]
) -> Iterator[PositionFault]:
    """`subscriptions`: the name of the subscription of each source. Raises SettingInvalid for another broker."""
    for source, end in enumerate(checkpoint.committed_ends):
        if end is None:
            continue
        if end.broker != positions.broker:
            raise errors.SettingInvalid(
                f"the checkpoint was written with broker {end.broker}, and this is broker {positions.broker}: connect "
                "to the former one with --url or --context"
            )
        for topic, at in end.topics.items():
            topic_id, end_offset, _ = positions.topics.get(topic, (0, 0, 0))
            if topic_id != at.topic_id:
                what = "was deleted" if not topic_id else "was deleted and created again"
                yield "topic_changed", topic, at.offset, f"the topic {what} after it was read"
                continue
            if end_offset < at.offset:
                detail = f"the topic ends at {end_offset}: the broker was restored from an older copy"
                yield "topic_changed", topic, at.offset, detail
            subscriber = subscriptions[source]
            acked = positions.acked.get((topic, subscriber))
            if acked is None:
                remarks.append(f"'{topic}' has no subscription '{subscriber}', which would keep unread messages")
            elif acked > at.offset:
                detail = f"'{subscriber}' has acked up to {acked}, the last complete micro-batch ends at {at.offset}"
                yield "acked_ahead", topic, at.offset, detail
