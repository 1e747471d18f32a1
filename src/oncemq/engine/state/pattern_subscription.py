"""A pattern subscription: one owner, attached to every topic whose name matches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemq.protocol.commands import BY_PATTERN
from oncemq.protocol.patterns import matcher

if TYPE_CHECKING:
    from oncemq.engine.state.topic import Subscription, Topic


class PatternSubscription:
    """A subscription to a pattern. The subscriptions that it attaches to topics have its positions."""

    __slots__ = (
        "epoch",
        "heard_ms",
        "idle_ms",
        "key",
        "matches",
        "pattern",
        "pending",
        "sought_epoch",
        "subscriber",
        "topics",
    )

    def __init__(self, pattern: str, subscriber: str, epoch: int, sought_epoch: int = 0, idle_ms: int = 0) -> None:
        self.pattern = pattern
        self.subscriber = subscriber
        self.epoch = epoch
        self.sought_epoch = sought_epoch
        #: As for a subscription to one topic.
        self.idle_ms = idle_ms
        self.heard_ms = 0
        #: Its subscriber name on the topics.
        self.key = subscriber + BY_PATTERN + pattern
        #: True for the names of topics that it is attached to.
        self.matches = matcher(pattern)
        #: By topic id.
        self.topics: dict[int, Subscription] = {}
        #: Ids of topics with messages that are neither acked nor expired, the longest waiting first.
        self.pending: dict[int, None] = {}

    def attach(self, topic: Topic, subscription: Subscription) -> None:
        subscription.pattern = self
        topic.attached[self.key] = subscription
        self.topics[topic.id] = subscription
        self.refresh(topic, subscription)

    def detach(self, topic_id: int) -> None:
        self.topics.pop(topic_id, None)
        self.pending.pop(topic_id, None)

    def on_put(self, topic_id: int) -> None:
        """The topic got messages."""
        self.pending.setdefault(topic_id)

    def on_ack(self, topic: Topic, subscription: Subscription) -> None:
        """The position on a topic moved: the other topics are served before this one is served again."""
        self.pending.pop(topic.id, None)
        self.refresh(topic, subscription)

    def defer(self, topic_id: int) -> None:
        """The messages of a topic could not be read: the other topics are served before it is tried again."""
        if topic_id in self.pending:
            del self.pending[topic_id]
            self.pending[topic_id] = None

    def refresh(self, topic: Topic, subscription: Subscription) -> None:
        """Update whether the topic is pending."""
        acked = subscription.acked
        if acked < topic.next_offset and topic.index.skip_expired(max(acked, topic.index.first)) < topic.next_offset:
            self.pending.setdefault(topic.id)
        else:
            self.pending.pop(topic.id, None)
