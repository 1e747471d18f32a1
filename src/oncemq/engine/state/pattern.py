"""A pattern subscription: one owner, attached to every topic whose name matches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemq.protocol.commands import BY_PATTERN
from oncemq.protocol.patterns import matches

if TYPE_CHECKING:
    from oncemq.engine.state.topic import Subscription, Topic


class Pattern:
    """A subscription by pattern. Its positions are those of the subscriptions that it has attached."""

    __slots__ = ("behind", "epoch", "key", "levels", "pattern", "sought_epoch", "subscriber", "topics")

    def __init__(self, pattern: str, subscriber: str, epoch: int, sought_epoch: int = 0) -> None:
        self.pattern = pattern
        self.subscriber = subscriber
        self.epoch = epoch
        self.sought_epoch = sought_epoch
        #: Its name on the topics.
        self.key = subscriber + BY_PATTERN + pattern
        self.levels = pattern.split(".")
        #: By topic's id.
        self.topics: dict[int, Subscription] = {}
        #: Topics with messages that are neither acked nor expired, the one that has waited longest first.
        self.behind: dict[int, None] = {}

    def matches(self, name: str) -> bool:
        return matches(self.levels, name)

    def attach(self, topic: Topic, subscription: Subscription) -> None:
        subscription.pattern = self
        topic.attached[self.key] = subscription
        self.topics[topic.id] = subscription
        self.look(topic, subscription)

    def detach(self, topic_id: int) -> None:
        self.topics.pop(topic_id, None)
        self.behind.pop(topic_id, None)

    def note_put(self, topic_id: int) -> None:
        """The topic got messages."""
        self.behind.setdefault(topic_id)

    def note_ack(self, topic: Topic, subscription: Subscription) -> None:
        """Its position moved: the other topics have their turn before it comes again."""
        self.behind.pop(topic.id, None)
        self.look(topic, subscription)

    def look(self, topic: Topic, subscription: Subscription) -> None:
        """Whether the topic has something for it."""
        if topic.index.past_expired(max(subscription.acked, topic.index.first)) < topic.next_offset:
            self.behind.setdefault(topic.id)
        else:
            self.behind.pop(topic.id, None)
