"""Subscriptions by pattern: one owner, attached to every topic whose name matches.

Levels of a name are separated by dots. In a pattern, `*` stands for one level, `#` for any number of them, none
included. Either is a level by itself: `orders.*`, `#.eu`, but not `ord*`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncemq.engine.commands import BY_PATTERN
from oncemq.engine.names import refuse_name
from oncemq.engine.replies import Refusal

if TYPE_CHECKING:
    from oncemq.engine.topic import Subscription, Topic


def is_pattern(name: str) -> bool:
    return "*" in name or "#" in name


def refuse_pattern(pattern: str) -> Refusal | None:
    refusal = refuse_name(pattern, "pattern")
    if refusal is not None:
        return refusal
    for level in pattern.split("."):
        if is_pattern(level) and len(level) > 1:
            return Refusal("NAME_INVALID", f"'{level}' in '{pattern}': '*' and '#' stand for whole levels")
    return None


def matches(levels: Sequence[str], name: str) -> bool:
    """Whether a pattern's levels fit a topic's name."""
    # Which beginnings of the pattern fit what was read of the name: no backtracking, whatever the pattern.
    reached = _past_hashes(levels, {0})
    for part in name.split("."):
        following = set()
        for at in reached:
            if at < len(levels):
                if levels[at] == "#":
                    following.add(at)
                elif levels[at] in ("*", part):
                    following.add(at + 1)
        if not following:
            return False
        reached = _past_hashes(levels, following)
    return len(levels) in reached


def _past_hashes(levels: Sequence[str], reached: set[int]) -> set[int]:
    found = set(reached)
    for at in reached:
        while at < len(levels) and levels[at] == "#":
            at += 1
            found.add(at)
    return found


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
