"""The broker's own word: where topics end, and how far subscriptions are. Knows nothing of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oncemq.spark.audit.report import TopicResult

if TYPE_CHECKING:
    from oncemq.client.sync import Client


class Positions(msgspec.Struct, frozen=True):
    #: (broker, topic's id) → the offset that its next message will get.
    end_offsets: dict[tuple[str, int], int] = {}
    #: (broker, topic's id, subscriber, pattern) → everything below is done.
    acked: dict[tuple[str, int, str, str], int] = {}

    def compared(self, topic: TopicResult) -> TopicResult:
        """A topic's result: what was stored has to be there."""
        end_offset = self.end_offsets.get((topic.broker, topic.topic_id), topic.end_offset)
        return msgspec.structs.replace(topic, vanished=max(0, topic.end_offset - end_offset))


def positions_of(client: Client) -> Positions:
    """As a broker has them now. Topics that are gone are not among them."""
    broker = client.health().broker_id
    topics = {topic.name: topic for topic in client.topics()}
    ends = {(broker, topic.topic_id): topic.end_offset for topic in topics.values()}
    acked = {
        (broker, topics[each.topic].topic_id, each.subscriber, each.pattern): each.acked
        for each in client.subscriptions()
        if each.topic in topics
    }
    return Positions(ends, acked)
