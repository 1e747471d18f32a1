"""The positions that the broker reports: the ends of topics, and the acked offsets of subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oncemq.spark.audit.report import TopicResult

if TYPE_CHECKING:
    from oncemq.client.sync import Client


class Positions(msgspec.Struct, frozen=True):
    #: (broker, topic id) → the offset that its next message will get.
    end_offsets: dict[tuple[str, int], int] = {}
    #: (broker, topic id, subscriber, pattern) → all messages below this offset are acked.
    acked: dict[tuple[str, int, str, str], int] = {}

    def compare(self, topic: TopicResult) -> TopicResult:
        """Return the result with the number of stored messages that the broker no longer has."""
        end_offset = self.end_offsets.get((topic.broker, topic.topic_id), topic.end_offset)
        return msgspec.structs.replace(topic, vanished=max(0, topic.end_offset - end_offset))


def read_positions(client: Client) -> Positions:
    """Read the current positions from a broker. Deleted topics are not among them."""
    broker = client.health().broker_id
    topics = {topic.name: topic for topic in client.topics()}
    ends = {(broker, topic.topic_id): topic.end_offset for topic in topics.values()}
    acked = {
        (broker, topics[each.topic].topic_id, each.subscriber, each.pattern): each.acked
        for each in client.subscriptions()
        if each.topic in topics
    }
    return Positions(ends, acked)
