"""The context in which an operation is decided, and the checks that many operations share."""

from __future__ import annotations

import msgspec

from oncemq.engine import events
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Topic
from oncemq.journal.contract import WriteSlot, record_bytes, record_end
from oncemq.protocol.limits import Limits
from oncemq.protocol.names import refuse_topic_name
from oncemq.protocol.replies import NotNow, Refusal

Outcome = events.Event | Refusal | NotNow


class DecisionContext(msgspec.Struct, gc=False):
    """The state, and the changes that earlier parts of the same transaction will make to it."""

    state: State
    limits: Limits
    now_ms: int
    #: Where the next payload will be written.
    slot: WriteSlot
    claim: events.AnyClaim
    #: Topics that earlier parts create (name → id), and the number of pattern subscriptions that they get.
    new_topics: dict[str, int] = {}
    new_subscriptions: int = 0
    #: Messages and bytes that earlier parts put, by topic id.
    put_counts: dict[int, int] = {}
    put_bytes: dict[int, int] = {}
    #: Number of delayed batches of earlier parts: each uses a number of the epoch counter.
    delays: int = 0

    def next_offset(self, topic_id: int) -> int:
        topic = self.state.topics_by_id.get(topic_id)
        return (topic.next_offset if topic is not None else 0) + self.put_counts.get(topic_id, 0)

    def next_epoch(self) -> int:
        return self.state.next_epoch + self.delays

    def add_put(self, part: events.Stored | events.Delayed) -> None:
        """Take a put into account for the parts that follow it."""
        if part.topic_name:
            self.new_topics[part.topic_name] = part.topic_id
            self.new_subscriptions += part.subscriptions
        if isinstance(part, events.Delayed):
            self.delays += 1
        else:
            self.put_counts[part.topic_id] = self.put_counts.get(part.topic_id, 0) + part.count
        if part.position:
            self.put_bytes[part.topic_id] = self.put_bytes.get(part.topic_id, 0) + part.size
            used = record_bytes(part.size)
            slot = self.slot
            self.slot = WriteSlot(
                record_end(part.position, part.size), slot.free_bytes - used, slot.writable_bytes - used
            )


def limit_reached(limit: int, what: str) -> Refusal:
    return Refusal("LIMIT_REACHED", f"the limit of {limit} {what} is reached")


def refuse_unknown_topic(name: str) -> Refusal:
    return refuse_topic_name(name) or Refusal("TOPIC_UNKNOWN", f"there is no topic '{name}'")


def refuse_new_topic(context: DecisionContext, name: str, subscriptions: int = 0) -> Refusal | None:
    """Refuse a new topic with this number of subscriptions, in addition to those of matching patterns."""
    if len(context.state.topics) + len(context.new_topics) >= context.limits.topics_max:
        return limit_reached(context.limits.topics_max, "topics")
    refusal = refuse_topic_name(name)
    if refusal is None and refuse_subscriptions(context, subscriptions + len(context.state.patterns)) is not None:
        # There are too many if all patterns match: count those that do.
        refusal = refuse_subscriptions(context, subscriptions + count_matching_patterns(context.state, name))
    return refusal


def count_matching_patterns(state: State, name: str) -> int:
    """Return the number of pattern subscriptions that a topic of this name gets."""
    return sum(1 for pattern in state.patterns.values() if pattern.matches(name))


def refuse_subscriptions(context: DecisionContext, count: int) -> Refusal | None:
    """Refuse this number of new subscriptions if it exceeds the limit."""
    limit = context.limits.subscriptions_max
    if count and context.state.subscriptions + context.new_subscriptions + count > limit:
        return limit_reached(limit, "subscriptions")
    return None


def refuse_full_disk(context: DecisionContext, size: int) -> NotNow | None:
    if record_bytes(size) > context.slot.writable_bytes:
        return NotNow("DISK_FULL", "the disk is full; acks are still accepted")
    return None


def refuse_over_quota(context: DecisionContext, topic: Topic, size: int) -> NotNow | Refusal | None:
    """Refuse a put to a topic at its quota.

    With another overflow policy than `refuse`, a tick deletes messages later, but never delayed ones.
    """
    if not topic.quota_bytes:
        return None
    size += context.put_bytes.get(topic.id, 0)
    if size > topic.quota_bytes:
        text = f"{size} bytes in one operation; topic '{topic.name}' has a quota of {topic.quota_bytes} bytes"
        return Refusal("TOO_LARGE", text)
    fixed_bytes = topic.held_bytes if topic.refuses_at_quota else topic.delayed_bytes
    if fixed_bytes + size > topic.quota_bytes:
        return NotNow("TOPIC_FULL", f"topic '{topic.name}' has reached its quota of {topic.quota_bytes} bytes")
    return None
