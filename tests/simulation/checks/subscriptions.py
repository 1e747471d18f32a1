"""Models of exclusive subscriptions: their positions, their owners, and the messages that were delivered.

Violations: a position above the acks that were sent or below those that were confirmed, an offset that is skipped, a
fenced owner that still succeeds.
"""

from __future__ import annotations

from oncemq.protocol import commands
from oncemq.protocol.replies import OpenReply, SeekReply, SubscribeReply, Verdict
from tests.simulation.environment.world import Violation

Key = tuple[int, str]


class SubscriptionModel:
    def __init__(self, name: tuple[str, str], label: str, start: int) -> None:
        #: Topic and subscriber.
        self.name = name
        self.label = label
        #: The first offset that belongs to it.
        self.start = start
        #: Everything from `start` to this offset was delivered to its owners.
        self.delivered_end = start
        self.ack_sent = start
        self.ack_confirmed = start
        self.epoch = 0
        self.openers: dict[int, str] = {}
        #: A process has requested to delete it, or its topic.
        self.may_be_deleted = False
        #: Offsets that were skipped for a good reason: expired or dropped.
        self.skipped: set[int] = set()
        #: Number of undecided seeks, and number of times that a seek was sent or decided.
        self.seeks_open = 0
        self.seek_marks = 0
        #: The order of a seek and another command is unknown, and so is the position.
        self.is_vague = False
        #: The position of the last seek, until the subscription is opened there.
        self.sought: int | None = None
        #: Epochs up to this one are outdated: a seek was executed after them.
        self._over_epoch = 0

    @property
    def least_epoch(self) -> int:
        """The lowest valid epoch: commands with a lower one that are sent from now on must fail."""
        return max(self.epoch, self._over_epoch + 1)

    def opened(self, reply: OpenReply, owner: str, acked_before: int, marks_when_sent: int) -> None:
        if self.openers.setdefault(reply.epoch, owner) != owner:
            raise Violation(f"{self.label}: epoch {reply.epoch} belongs to {self.openers[reply.epoch]} and {owner}")
        self.epoch = max(self.epoch, reply.epoch)
        is_after = self.seek_marks == marks_when_sent and not self.seeks_open
        is_certain = is_after and not self.is_vague
        if is_certain and self.sought is None:
            self.check_position(reply.acked, acked_before)
            return
        if is_certain and reply.acked != self.sought:
            raise Violation(f"{self.label}: a seek put it at {self.sought}, and it was opened at {reply.acked}")
        self.restart_at(reply.acked)
        self.is_vague = not is_after

    def seek_sent(self) -> int:
        """A seek was sent. Return the current epoch, for `seek_decided`."""
        self.seeks_open += 1
        self.seek_marks += 1
        return self.epoch

    def seek_decided(self, position: int | None, epoch_when_sent: int) -> None:
        """A seek was decided. `position` is None if it was not executed."""
        self.seeks_open -= 1
        self.seek_marks += 1
        if position is not None:
            self._over_epoch = max(self._over_epoch, epoch_when_sent)
            # An open in the meantime may have been executed before or after the seek.
            self.is_vague = self.epoch != epoch_when_sent
            self.sought = position

    def restart_at(self, position: int) -> None:
        """The subscription was moved: messages from this position are delivered again."""
        self.sought = None
        self.start = self.delivered_end = self.ack_sent = self.ack_confirmed = position

    def skip(self, end: int) -> None:
        self.skipped.update(range(self.delivered_end, end))
        self.delivered_end = max(self.delivered_end, end)

    def check_position(self, acked: int, acked_before: int) -> None:
        if acked < acked_before:
            raise Violation(f"{self.label}: the position is {acked}, and an ack of {acked_before} was confirmed")
        if acked > self.ack_sent:
            raise Violation(f"{self.label}: the position is {acked}, but the highest ack was {self.ack_sent}")

    def delivered(self, first: int, end: int) -> None:
        if first > self.delivered_end:
            raise Violation(f"lost: {self.label} got {first}, but never {self.delivered_end}")
        self.delivered_end = max(self.delivered_end, end)

    def succeeded(self, epoch: int, epoch_when_sent: int, what: str) -> None:
        if epoch < epoch_when_sent:
            raise Violation(f"{self.label}: a fenced owner (epoch {epoch} of {epoch_when_sent}) succeeded with {what}")


class Subscriptions:
    def __init__(self) -> None:
        self.models: dict[Key, SubscriptionModel] = {}
        self._created: set[Key] = set()
        #: Topics that may be deleted, by a process or with their last subscription.
        self.deletable_topics: set[str] = set()
        self.deletable: set[tuple[str, str]] = set()
        #: Topics that are known to exist and to be permanent, and their ids.
        self.stays: dict[str, int] = {}
        #: Topic → subscribers that were ever requested, and those that certainly exist.
        self.requested: dict[str, set[str]] = {}
        self.certain: dict[str, set[str]] = {}
        self._seeks: dict[commands.Seek, list[list[tuple[SubscriptionModel, int]]]] = {}

    def is_topic_certain(self, topic: str) -> bool:
        return topic in self.stays and topic not in self.deletable_topics

    def must_stay(self, topic: str, topic_id: int) -> bool:
        """Return whether the topic with this id must still exist."""
        return self.is_topic_certain(topic) and topic_id >= self.stays[topic]

    def may_be_deleted(self, topic: str, subscriber: str) -> bool:
        return topic in self.deletable_topics or (topic, subscriber) in self.deletable

    def subscribed(self, topic: str, subscriber: str, reply: SubscribeReply) -> SubscriptionModel:
        key = (reply.topic_id, subscriber)
        model = self.models.get(key)
        label = f"'{subscriber}' on '{topic}' ({reply.topic_id:x})"
        is_stable = not self.may_be_deleted(topic, subscriber)
        if is_stable and reply.created:
            if key in self._created:
                raise Violation(f"lost: {label} was created twice, but it was not deleted")
            self._created.add(key)
        if model is None or (reply.created and not is_stable):
            model = self._add(key, SubscriptionModel((topic, subscriber), label, reply.acked))
        if not is_stable and not model.ack_confirmed <= reply.acked <= model.ack_sent:
            # It was deleted and created again, and the reply was lost.
            model = self._add(key, SubscriptionModel((topic, subscriber), label, reply.acked))
        if is_stable:
            self.stays.setdefault(topic, reply.topic_id)
            self.certain.setdefault(topic, set()).add(subscriber)
        return model

    # Seeks.

    def seek_sent(self, seek: commands.Seek) -> None:
        entries = [(model, model.seek_sent()) for model in self._models_of(seek)]
        self._seeks.setdefault(seek, []).append(entries)

    def sought(self, seek: commands.Seek, verdict: Verdict | None) -> None:
        """A seek was decided."""
        position = verdict.acked if isinstance(verdict, SeekReply) else None
        for model, epoch_when_sent in self._seeks[seek].pop(0):
            model.seek_decided(position, epoch_when_sent)

    def _add(self, key: Key, model: SubscriptionModel) -> SubscriptionModel:
        self.models[key] = model
        for seek, tries in self._seeks.items():
            if (seek.topic, seek.subscriber) == model.name:
                model.is_vague = True
                model.seek_marks += 1
                for entries in tries:
                    entries.append((model, model.seek_sent()))
        return model

    def _models_of(self, seek: commands.Seek) -> list[SubscriptionModel]:
        return [model for model in self.models.values() if model.name == (seek.topic, seek.subscriber)]

    def check_count(self, topic: str, certain_when_sent: int, count: int) -> None:
        """Check the number of subscriptions in the reply to a put."""
        requested = len(self.requested.get(topic, ()))
        if not certain_when_sent <= count <= requested:
            raise Violation(
                f"a put to '{topic}' was stored for {count} subscriptions, "
                f"and there were {certain_when_sent} to {requested} of them"
            )
