"""What a decision about an operation is made from."""

from __future__ import annotations

from oncemq.engine import events
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Topic
from oncemq.journal.contract import WriteSlot, record_bytes, record_end
from oncemq.protocol.limits import Limits
from oncemq.protocol.names import refuse_topic_name
from oncemq.protocol.replies import NotNow, Refusal

Outcome = events.Event | Refusal | NotNow


class Situation:
    """The state, and what the earlier parts of the same operation will have changed of it."""

    __slots__ = (
        "attached",
        "claim",
        "delays",
        "limits",
        "now_ms",
        "place",
        "put_bytes",
        "put_counts",
        "state",
        "topics_made",
    )

    def __init__(self, state: State, limits: Limits, now_ms: int, place: WriteSlot, claim: events.AnyClaim) -> None:
        self.state = state
        self.limits = limits
        self.now_ms = now_ms
        #: Where the next payload goes.
        self.place = place
        self.claim = claim
        #: Ids of topics that earlier parts make, by name; and how many subscriptions patterns attach to them.
        self.topics_made: dict[str, int] = {}
        self.attached = 0
        #: Messages and bytes that earlier parts put, by topic's id.
        self.put_counts: dict[int, int] = {}
        self.put_bytes: dict[int, int] = {}
        #: Batches that earlier parts delay: each takes a number from the counter of epochs.
        self.delays = 0

    def next_offset(self, topic_id: int) -> int:
        topic = self.state.topics_by_id.get(topic_id)
        return (topic.next_offset if topic is not None else 0) + self.put_counts.get(topic_id, 0)

    def next_epoch(self) -> int:
        return self.state.next_epoch + self.delays

    def count_put(self, part: events.Stored | events.Delayed) -> None:
        """Another part follows this one."""
        if part.topic_name:
            self.topics_made[part.topic_name] = part.topic_id
            self.attached += part.subscriptions
        if isinstance(part, events.Delayed):
            self.delays += 1
        else:
            self.put_counts[part.topic_id] = self.put_counts.get(part.topic_id, 0) + part.count
        if part.position:
            self.put_bytes[part.topic_id] = self.put_bytes.get(part.topic_id, 0) + part.size
            used = record_bytes(part.size)
            place = self.place
            self.place = WriteSlot(
                record_end(part.position, part.size), place.room_bytes - used, place.writable_bytes - used
            )


def unknown_topic(name: str) -> Refusal:
    return refuse_topic_name(name) or Refusal("TOPIC_UNKNOWN", f"there is no topic '{name}'")


def refuse_new_topic(at: Situation, name: str, subscriptions: int = 0) -> Refusal | None:
    """Of a topic that begins with so many subscriptions, beside those of the patterns that it matches."""
    if len(at.state.topics) + len(at.topics_made) >= at.limits.topics_max:
        return Refusal("LIMIT_REACHED", f"there are {at.limits.topics_max} topics, which is the limit")
    refusal = refuse_topic_name(name)
    if refusal is None and refuse_subscriptions(at, subscriptions + len(at.state.patterns)) is not None:
        # Too many if all patterns match; so see how many do.
        refusal = refuse_subscriptions(at, subscriptions + matching(at.state, name))
    return refusal


def matching(state: State, name: str) -> int:
    """How many subscriptions by pattern a topic of this name gets."""
    return sum(1 for pattern in state.patterns.values() if pattern.matches(name))


def refuse_subscriptions(at: Situation, count: int) -> Refusal | None:
    """So many more."""
    limit = at.limits.subscriptions_max
    if count and at.state.subscriptions + at.attached + count > limit:
        return Refusal("LIMIT_REACHED", f"there would be more than {limit} subscriptions, which is the limit")
    return None


def no_room(at: Situation, size: int) -> NotNow | None:
    if record_bytes(size) > at.place.writable_bytes:
        return NotNow("DISK_FULL", "the disk is full; acknowledgements are still taken")
    return None


def over_quota(at: Situation, topic: Topic, size: int) -> NotNow | Refusal | None:
    """What a topic that is full answers to more. Unless its policy is to refuse, room is made (ticks.py), but not
    among what is delayed."""
    if not topic.quota_bytes:
        return None
    size += at.put_bytes.get(topic.id, 0)
    if size > topic.quota_bytes:
        text = f"{size} bytes at once; topic '{topic.name}' has a quota of {topic.quota_bytes}"
        return Refusal("TOO_LARGE", text)
    firm_bytes = topic.held_bytes if topic.refuses else topic.delayed_bytes
    if firm_bytes + size > topic.quota_bytes:
        return NotNow("TOPIC_FULL", f"topic '{topic.name}' is at its quota of {topic.quota_bytes} bytes")
    return None
