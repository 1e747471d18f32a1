"""What is known of subscriptions from outside: where they stand, who owns them, what was given to them.

Violations: a position that ran ahead of what was acked or fell behind it, an offset given twice or left out, an
owner that was fenced and still succeeds.
"""

from __future__ import annotations

from oncemq.engine.replies import OpenReply, SubscribeReply
from tests.simulation.world import Violation

Key = tuple[int, str]


class SubscriptionBook:
    def __init__(self, label: str, start: int) -> None:
        self.label = label
        #: The first offset that belongs to it.
        self.start = start
        #: Given to its owners so far: everything from `start` up to here.
        self.given_end = start
        self.ack_sent = start
        self.ack_confirmed = start
        self.epoch = 0
        self.openers: dict[int, str] = {}
        #: Somebody has asked to remove it, or its topic.
        self.may_vanish = False

    def opened(self, reply: OpenReply, owner: str, acked_before: int) -> None:
        if self.openers.setdefault(reply.epoch, owner) != owner:
            raise Violation(f"{self.label}: epoch {reply.epoch} was given to {self.openers[reply.epoch]} and {owner}")
        self.epoch = max(self.epoch, reply.epoch)
        self.check_position(reply.acked, acked_before)

    def check_position(self, acked: int, acked_before: int) -> None:
        if acked < acked_before:
            raise Violation(f"{self.label}: the position is {acked}, and an ack of {acked_before} was confirmed")
        if acked > self.ack_sent:
            raise Violation(f"{self.label}: the position ran ahead to {acked}, and nobody acked beyond {self.ack_sent}")

    def given(self, first: int, end: int) -> None:
        if first > self.given_end:
            raise Violation(f"lost: {self.label} was given {first}, and never {self.given_end}")
        self.given_end = max(self.given_end, end)

    def succeeded(self, epoch: int, epoch_when_sent: int, what: str) -> None:
        if epoch < epoch_when_sent:
            raise Violation(f"{self.label}: a fenced owner (epoch {epoch} of {epoch_when_sent}) succeeded with {what}")


class Subscriptions:
    def __init__(self) -> None:
        self.books: dict[Key, SubscriptionBook] = {}
        self._created: set[Key] = set()
        #: Names of topics that may go: deleted by somebody, or with their last subscriber.
        self.vanishing_topics: set[str] = set()
        self.vanishing: set[tuple[str, str]] = set()
        #: Topics that are known to have been made and to stay, and their ids then.
        self.stays: dict[str, int] = {}
        #: topic → subscribers that were ever asked for, and those that are there for certain.
        self.asked: dict[str, set[str]] = {}
        self.certain: dict[str, set[str]] = {}

    def is_topic_certain(self, topic: str) -> bool:
        return topic in self.stays and topic not in self.vanishing_topics

    def must_stay(self, topic: str, topic_id: int) -> bool:
        """Whether this very topic must still be there."""
        return self.is_topic_certain(topic) and topic_id >= self.stays[topic]

    def may_vanish(self, topic: str, subscriber: str) -> bool:
        return topic in self.vanishing_topics or (topic, subscriber) in self.vanishing

    def subscribed(self, topic: str, subscriber: str, reply: SubscribeReply) -> SubscriptionBook:
        key = (reply.topic_id, subscriber)
        book = self.books.get(key)
        label = f"'{subscriber}' on '{topic}' ({reply.topic_id:x})"
        is_stable = not self.may_vanish(topic, subscriber)
        if is_stable and reply.created:
            if key in self._created:
                raise Violation(f"lost: {label} was made twice, and nobody had removed it")
            self._created.add(key)
        if book is None or (reply.created and not is_stable):
            book = self.books[key] = SubscriptionBook(label, reply.acked)
        if not is_stable and not book.ack_confirmed <= reply.acked <= book.ack_sent:
            # It was left and made again, and nobody heard the answer to that.
            book = self.books[key] = SubscriptionBook(label, reply.acked)
        if is_stable:
            self.stays.setdefault(topic, reply.topic_id)
            self.certain.setdefault(topic, set()).add(subscriber)
        return book

    def check_count(self, topic: str, certain_when_sent: int, count: int) -> None:
        """A put's reply says for how many subscriptions it is stored."""
        asked = len(self.asked.get(topic, ()))
        if not certain_when_sent <= count <= asked:
            raise Violation(
                f"a put to '{topic}' was stored for {count} subscriptions, "
                f"and there were {certain_when_sent} to {asked} of them"
            )
