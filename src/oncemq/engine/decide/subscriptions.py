"""What becomes of subscriptions: made, ended, owned, moved. Decides; changes nothing."""

from __future__ import annotations

from oncemq.engine import events
from oncemq.engine.decide.decision_context import (
    Outcome,
    Situation,
    refuse_new_topic,
    refuse_subscriptions,
    unknown_topic,
)
from oncemq.engine.state.pattern import Pattern
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.protocol import commands
from oncemq.protocol.limits import HOLD_MS_MAX, LEASE_MS_MAX, LEASE_MS_MIN, SEEK_TOPICS_MAX
from oncemq.protocol.names import refuse_name, refuse_topic_name
from oncemq.protocol.patterns import is_pattern, matches, refuse_pattern
from oncemq.protocol.replies import NotNow, Refusal


def decide_subscribe(at: Situation, op: commands.Subscribe) -> Outcome:
    if is_pattern(op.topic):
        return _subscribe_pattern(at, op)
    topic = at.state.topics.get(op.topic)
    if topic is not None and (known := _by_name(topic, op.subscriber)):
        return _subscribed_before(at, op, topic, known)
    refusal = refuse_name(op.subscriber, "subscriber's name") or _refuse_sharing(op)
    if refusal is not None:
        return refusal
    epoch = at.next_epoch() if op.sharing is not None else 0
    if topic is None:
        if op.start not in (0, commands.START_NEW, commands.START_EARLIEST):
            return Refusal("OFFSET_OUT_OF_RANGE", f"topic '{op.topic}' does not exist yet, and starts at 0")
        return refuse_new_topic(at, op.topic, subscriptions=1) or events.Subscribed(
            at.claim, at.state.next_topic_id, op.subscriber, 0, True, op.topic, op.sharing, epoch
        )
    acked = start_of(topic, op.start)
    if isinstance(acked, Refusal):
        return acked
    refusal = refuse_subscriptions(at, 1) or _refuse_key_order(topic, op.sharing, acked)
    return refusal or events.Subscribed(at.claim, topic.id, op.subscriber, acked, True, "", op.sharing, epoch)


def _subscribed_before(at: Situation, op: commands.Subscribe, topic: Topic, known: Subscription) -> Outcome:
    sharing = known.shared.policy if known.shared is not None else None
    if sharing != op.sharing:
        text = f"'{op.subscriber}' on '{op.topic}' exists and is {_in_words(sharing)}"
        return Refusal("SUBSCRIPTION_EXISTS", text)
    return events.Subscribed(at.claim, topic.id, op.subscriber, known.acked, False)


def _in_words(sharing: commands.Sharing | None) -> str:
    if sharing is None:
        return "not shared"
    return (
        f"shared with lease_ms={sharing.lease_ms}, tries_max={sharing.tries_max}, "
        f"dead_topic='{sharing.dead_topic}', key_order={sharing.key_order}"
    )


def _refuse_sharing(op: commands.Subscribe) -> Refusal | None:
    sharing = op.sharing
    if sharing is None:
        return None
    if not LEASE_MS_MIN <= sharing.lease_ms <= LEASE_MS_MAX:
        return Refusal("MALFORMED", f"a lease lasts {LEASE_MS_MIN} to {LEASE_MS_MAX} ms")
    if sharing.tries_max < 0 or bool(sharing.tries_max) != bool(sharing.dead_topic):
        return Refusal("MALFORMED", "tries_max is not negative, and has a dead-letter topic where it is not 0")
    if sharing.dead_topic == op.topic:
        return Refusal("MALFORMED", "a topic can't be its own dead-letter topic")
    return refuse_topic_name(sharing.dead_topic) if sharing.dead_topic else None


def _refuse_key_order(topic: Topic, sharing: commands.Sharing | None, position: int) -> Refusal | None:
    """Messages have key hashes from the first subscription on that wants them."""
    if sharing is None or not sharing.key_order:
        return None
    keyed_from = topic.keyed_from if topic.key_orders else topic.next_offset
    if max(position, topic.index.first) >= keyed_from:
        return None
    text = f"order per key is kept from offset {keyed_from} of '{topic.name}' on; start there"
    return Refusal("UNSUPPORTED", text)


def _subscribe_pattern(at: Situation, op: commands.Subscribe) -> Outcome:
    known = at.state.patterns.get((op.topic, op.subscriber))
    earliest = op.start == commands.START_EARLIEST
    if op.sharing is not None:
        return Refusal("UNSUPPORTED", "a subscription by pattern can't be shared")
    if known is not None:
        return events.PatternSubscribed(at.claim, op.topic, op.subscriber, known.epoch, earliest, False)
    refusal = refuse_pattern(op.topic) or refuse_name(op.subscriber, "subscriber's name")
    if refusal is not None:
        return refusal
    if op.start not in (commands.START_NEW, commands.START_EARLIEST):
        return Refusal("UNSUPPORTED", "a subscription by pattern starts with what is new, or at the earliest")
    refusal = _refuse_another_pattern(at, op.topic)
    return refusal or events.PatternSubscribed(at.claim, op.topic, op.subscriber, at.next_epoch(), earliest, True)


def _refuse_another_pattern(at: Situation, pattern: str) -> Refusal | None:
    if len(at.state.patterns) >= at.limits.patterns_max:
        text = f"there are {at.limits.patterns_max} subscriptions by pattern, which is the limit"
        return Refusal("LIMIT_REACHED", text)
    if refuse_subscriptions(at, len(at.state.topics)) is None:
        # Not too many even if all topics match.
        return None
    levels = pattern.split(".")
    return refuse_subscriptions(at, sum(1 for name in at.state.topics if matches(levels, name)))


def start_of(topic: Topic, start: int) -> int | Refusal:
    """Where a new subscription, or one that is moved, begins."""
    if start == commands.START_NEW:
        return topic.next_offset
    if start == commands.START_EARLIEST:
        return topic.index.first
    return refuse_offset(topic, start) or start


def refuse_offset(topic: Topic, offset: int) -> Refusal | None:
    """An offset that is neither stored nor the next one."""
    if offset > topic.next_offset:
        return Refusal("OFFSET_OUT_OF_RANGE", f"offset {offset}; topic '{topic.name}' ends at {topic.next_offset}")
    if offset < topic.index.first:
        text = f"offset {offset}; topic '{topic.name}' is stored from {topic.index.first} on"
        return Refusal("RANGE_GONE", text)
    return None


def decide_unsubscribe(at: Situation, op: commands.Unsubscribe) -> Outcome:
    if is_pattern(op.topic):
        found = _pattern(at.state, op.topic, op.subscriber)
        return found if isinstance(found, Refusal) else events.PatternUnsubscribed(at.claim, op.topic, op.subscriber)
    topic = at.state.topics.get(op.topic)
    if topic is None:
        return unknown_topic(op.topic)
    if _by_name(topic, op.subscriber) is None:
        return _not_subscribed(topic, op.subscriber)
    removed = not topic.stays and len(topic.subscriptions) == 1
    return events.Unsubscribed(at.claim, topic.id, op.subscriber, removed)


def _by_name(topic: Topic, subscriber: str) -> Subscription | None:
    """A subscription of this very topic. One by pattern is made, owned, moved and ended as a whole."""
    found = topic.subscriptions.get(subscriber)
    return found if found is not None and found.pattern is None else None


def _not_subscribed(topic: Topic, subscriber: str) -> Refusal:
    subscriber = subscriber.partition(commands.BY_PATTERN)[0]
    if subscriber in topic.expired_names:
        text = f"'{subscriber}' was the slowest when '{topic.name}' reached its quota, and was ended"
        return Refusal("SUBSCRIPTION_EXPIRED", text)
    return Refusal("NOT_SUBSCRIBED", f"'{subscriber}' is not subscribed to '{topic.name}'")


def _pattern(state: State, pattern: str, subscriber: str) -> Pattern | Refusal:
    found = state.patterns.get((pattern, subscriber))
    return found or Refusal("NOT_SUBSCRIBED", f"'{subscriber}' is not subscribed to '{pattern}'")


# Owners.


def decide_open(at: Situation, op: commands.Open) -> Outcome:
    if not 0 <= op.hold_ms <= HOLD_MS_MAX:
        return Refusal("MALFORMED", f"a hold lasts 0 to {HOLD_MS_MAX} ms")
    if is_pattern(op.topic):
        return _open_pattern(at, op)
    topic = at.state.topics.get(op.topic)
    if topic is None:
        return unknown_topic(op.topic)
    subscription = _by_name(topic, op.subscriber)
    if subscription is None:
        return _not_subscribed(topic, op.subscriber)
    if subscription.shared is not None:
        policy = subscription.shared.policy
        return events.Joined(at.claim, topic.id, op.subscriber, subscription.epoch, subscription.acked, policy)
    if _is_succeeded(subscription, op.former):
        return _succeeded(op)
    if op.hold_ms and subscription.held_until_ms > at.now_ms:
        return NotNow("BUSY", f"another client holds '{op.subscriber}' on '{op.topic}' for a moment")
    held_until_ms = at.now_ms + op.hold_ms if op.hold_ms > 0 else 0
    return events.OwnerChanged(at.claim, topic.id, op.subscriber, at.next_epoch(), subscription.acked, held_until_ms)


def _open_pattern(at: Situation, op: commands.Open) -> Outcome:
    pattern = _pattern(at.state, op.topic, op.subscriber)
    if isinstance(pattern, Refusal):
        return pattern
    if op.hold_ms:
        return Refusal("UNSUPPORTED", "a subscription by pattern can't be held")
    if _is_succeeded(pattern, op.former):
        return _succeeded(op)
    return events.PatternOwnerChanged(at.claim, op.topic, op.subscriber, at.next_epoch())


def _is_succeeded(owner: Subscription | Pattern, former: int) -> bool:
    """Somebody else has opened it since."""
    refusal = refuse_epoch(owner, former, "it") if former else None
    return refusal is not None and refusal.code == "FENCED"


def _succeeded(op: commands.Open) -> Refusal:
    return Refusal("SUBSCRIPTION_FENCED", f"another client took over '{op.subscriber}' on '{op.topic}'")


def decide_close(at: Situation, op: commands.Close) -> Outcome:
    found = owned(at.state, op.topic_id, op.subscriber, op.epoch)
    if isinstance(found, Refusal):
        return found
    return events.OwnerLeft(at.claim, op.topic_id, op.subscriber)


def held(state: State, topic_id: int, subscriber: str, epoch: int) -> tuple[Topic, Subscription] | Refusal:
    """A subscription, if the caller's epoch is its own."""
    topic = state.topics_by_id.get(topic_id)
    if topic is None:
        return Refusal("TOPIC_GONE", "the topic was deleted")
    subscription = topic.subscriptions.get(subscriber)
    if subscription is None:
        return _not_subscribed(topic, subscriber)
    owner = subscription.pattern or subscription
    refusal = refuse_epoch(owner, epoch, f"'{owner.subscriber}' on '{topic.name}'")
    return refusal or (topic, subscription)


def refuse_epoch(owner: Subscription | Pattern, epoch: int, what: str) -> Refusal | None:
    if owner.epoch == epoch:
        return None
    if owner.sought_epoch and owner.sought_epoch <= epoch < owner.epoch:
        return Refusal("SOUGHT", f"a seek moved {what}")
    return Refusal("FENCED", f"another client took over {what}")


def owned(state: State, topic_id: int, subscriber: str, epoch: int) -> tuple[Topic, Subscription] | Refusal:
    """A subscription, if the caller is its owner."""
    found = held(state, topic_id, subscriber, epoch)
    if not isinstance(found, Refusal) and found[1].shared is not None:
        return Refusal("KIND_MISMATCH", f"'{subscriber}' on '{found[0].name}' is shared: take and settle its messages")
    return found


def joined(state: State, topic_id: int, subscriber: str, epoch: int) -> tuple[Topic, Subscription] | Refusal:
    """A shared subscription, if it is the one that the caller has opened."""
    found = held(state, topic_id, subscriber, epoch)
    if not isinstance(found, Refusal) and found[1].shared is None:
        return Refusal("KIND_MISMATCH", f"'{subscriber}' on '{found[0].name}' is not shared: get and ack its messages")
    return found


def owned_pattern(state: State, pattern: str, subscriber: str, epoch: int) -> Pattern | Refusal:
    found = _pattern(state, pattern, subscriber)
    if isinstance(found, Refusal):
        return found
    return refuse_epoch(found, epoch, f"'{subscriber}' on '{pattern}'") or found


# Seeking.


def decide_seek(at: Situation, op: commands.Seek) -> Outcome:
    if op.time_ms < 0:
        return Refusal("MALFORMED", "a time is not negative")
    if is_pattern(op.topic):
        return _seek_pattern(at, op)
    topic = at.state.topics.get(op.topic)
    if topic is None:
        return unknown_topic(op.topic)
    subscription = _by_name(topic, op.subscriber)
    if subscription is None:
        return _not_subscribed(topic, op.subscriber)
    position = topic.index.find_time(op.time_ms) if op.time_ms else start_of(topic, op.to)
    if isinstance(position, Refusal):
        return position
    if subscription.shared is not None:
        refusal = _refuse_key_order(topic, subscription.shared.policy, position)
        if refusal is not None:
            return refusal
    return events.Sought(at.claim, topic.id, op.subscriber, at.next_epoch(), position)


def _seek_pattern(at: Situation, op: commands.Seek) -> Outcome:
    found = _pattern(at.state, op.topic, op.subscriber)
    if isinstance(found, Refusal):
        return found
    if op.to not in (commands.START_NEW, commands.START_EARLIEST) and not op.time_ms:
        return Refusal("UNSUPPORTED", "a subscription by pattern can't be moved to an offset: each topic has its own")
    if len(found.topics) > SEEK_TOPICS_MAX:
        return Refusal("LIMIT_REACHED", f"'{op.topic}' has {len(found.topics)} topics; a seek moves {SEEK_TOPICS_MAX}")
    positions = []
    for topic_id in found.topics:
        topic = at.state.topics_by_id[topic_id]
        position = topic.index.find_time(op.time_ms) if op.time_ms else start_of(topic, op.to)
        assert isinstance(position, int)
        positions.append((topic_id, position))
    return events.PatternSought(at.claim, op.topic, op.subscriber, at.next_epoch(), tuple(positions))
