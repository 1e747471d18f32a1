"""Decides operations on subscriptions: subscribe, unsubscribe, open, close and seek."""

from __future__ import annotations

from oncemq.engine import events
from oncemq.engine.decide.decision_context import (
    DecisionContext,
    Outcome,
    limit_reached,
    refuse_new_topic,
    refuse_subscriptions,
)
from oncemq.engine.decide.subscriptions.ownership import (
    find_by_name,
    find_exclusive,
    find_named,
    find_pattern,
    note_heard,
    refuse_epoch,
)
from oncemq.engine.decide.subscriptions.positions import seek_position, start_of
from oncemq.engine.state.pattern_subscription import PatternSubscription
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.protocol import commands
from oncemq.protocol.limits import HOLD_MS_MAX, IDLE_MS_MAX, IDLE_MS_MIN, LEASE_MS_MAX, LEASE_MS_MIN, SEEK_TOPICS_MAX
from oncemq.protocol.names import refuse_name, refuse_topic_name
from oncemq.protocol.patterns import is_pattern, matcher, refuse_pattern
from oncemq.protocol.replies import NotNow, Refusal


def decide_subscribe(context: DecisionContext, operation: commands.Subscribe) -> Outcome:
    if is_pattern(operation.topic):
        return _subscribe_pattern(context, operation)
    topic = context.state.topics.get(operation.topic)
    if topic is not None and (known := find_by_name(topic, operation.subscriber)):
        return _already_subscribed(context, operation, topic, known)
    refusal = refuse_name(operation.subscriber, "subscriber's name") or _refuse_options(operation)
    if refusal is not None:
        return refusal
    epoch = context.next_epoch() if operation.sharing is not None else 0
    if topic is None:
        if operation.start not in (0, commands.START_NEW, commands.START_EARLIEST):
            return Refusal("OFFSET_OUT_OF_RANGE", f"topic '{operation.topic}' does not exist yet: it will start at 0")
        return refuse_new_topic(context, operation.topic, subscriptions=1) or events.Subscribed(
            context.claim,
            context.state.next_topic_id,
            operation.subscriber,
            0,
            True,
            operation.topic,
            operation.sharing,
            epoch,
            operation.idle_ms,
        )
    acked = start_of(topic, operation.start)
    if isinstance(acked, Refusal):
        return acked
    refusal = refuse_subscriptions(context, 1) or _refuse_key_order(topic, operation.sharing, acked)
    return refusal or events.Subscribed(
        context.claim, topic.id, operation.subscriber, acked, True, "", operation.sharing, epoch, operation.idle_ms
    )


def _already_subscribed(
    context: DecisionContext, operation: commands.Subscribe, topic: Topic, known: Subscription
) -> Outcome:
    sharing = known.shared.policy if known.shared is not None else None
    if sharing != operation.sharing:
        return _exists_as(operation, _describe(sharing))
    if known.idle_ms != operation.idle_ms:
        return _exists_as(operation, _describe_idle(known.idle_ms))
    return events.Subscribed(context.claim, topic.id, operation.subscriber, known.acked, False)


def _exists_as(operation: commands.Subscribe, what: str) -> Refusal:
    text = f"'{operation.subscriber}' on '{operation.topic}' already exists and is {what}"
    return Refusal("SUBSCRIPTION_EXISTS", text)


def _describe_idle(idle_ms: int) -> str:
    return f"deleted when its owner is idle for {idle_ms} ms" if idle_ms else "kept while its owner is idle"


def _describe(sharing: commands.Sharing | None) -> str:
    if sharing is None:
        return "exclusive"
    return (
        f"shared with lease_ms={sharing.lease_ms}, tries_max={sharing.tries_max}, "
        f"dead_topic='{sharing.dead_topic}', key_order={sharing.key_order}"
    )


def _refuse_options(operation: commands.Subscribe) -> Refusal | None:
    idle_ms = operation.idle_ms
    if idle_ms and not IDLE_MS_MIN <= idle_ms <= IDLE_MS_MAX:
        return Refusal("MALFORMED", f"idle_ms must be 0, or {IDLE_MS_MIN} to {IDLE_MS_MAX}")
    if idle_ms and operation.sharing is not None:
        return Refusal("UNSUPPORTED", "a shared subscription has no owner, and cannot have idle_ms")
    sharing = operation.sharing
    if sharing is None:
        return None
    if not LEASE_MS_MIN <= sharing.lease_ms <= LEASE_MS_MAX:
        return Refusal("MALFORMED", f"lease_ms must be {LEASE_MS_MIN} to {LEASE_MS_MAX}")
    if sharing.tries_max < 0 or bool(sharing.tries_max) != bool(sharing.dead_topic):
        return Refusal("MALFORMED", "tries_max must not be negative, and needs a dead-letter topic if it is not 0")
    if sharing.dead_topic == operation.topic:
        return Refusal("MALFORMED", "a topic cannot be its own dead-letter topic")
    return refuse_topic_name(sharing.dead_topic) if sharing.dead_topic else None


def _refuse_key_order(topic: Topic, sharing: commands.Sharing | None, position: int) -> Refusal | None:
    """Refuse key order for offsets without key hashes: they are stored once a subscription with key order exists."""
    if sharing is None or not sharing.key_order:
        return None
    keyed_from = topic.keyed_from if topic.key_orders else topic.next_offset
    if max(position, topic.index.first) >= keyed_from:
        return None
    text = f"key order of '{topic.name}' is available from offset {keyed_from}; start there"
    return Refusal("UNSUPPORTED", text)


def _subscribe_pattern(context: DecisionContext, operation: commands.Subscribe) -> Outcome:
    known = context.state.patterns.get((operation.topic, operation.subscriber))
    earliest = operation.start == commands.START_EARLIEST
    if operation.sharing is not None:
        return Refusal("UNSUPPORTED", "a pattern subscription cannot be shared")
    if known is not None:
        if known.idle_ms != operation.idle_ms:
            return _exists_as(operation, _describe_idle(known.idle_ms))
        return events.PatternSubscribed(
            context.claim, operation.topic, operation.subscriber, known.epoch, earliest, False
        )
    refusal = (
        refuse_pattern(operation.topic)
        or refuse_name(operation.subscriber, "subscriber's name")
        or _refuse_options(operation)
    )
    if refusal is not None:
        return refusal
    if operation.start not in (commands.START_NEW, commands.START_EARLIEST):
        return Refusal("UNSUPPORTED", "a pattern subscription can only start at new or at earliest")
    refusal = _refuse_new_pattern(context, operation.topic)
    return refusal or events.PatternSubscribed(
        context.claim, operation.topic, operation.subscriber, context.next_epoch(), earliest, True, operation.idle_ms
    )


def _refuse_new_pattern(context: DecisionContext, pattern: str) -> Refusal | None:
    if len(context.state.patterns) >= context.limits.patterns_max:
        return limit_reached(context.limits.patterns_max, "pattern subscriptions")
    if refuse_subscriptions(context, len(context.state.topics)) is None:
        # There is space even if all topics match.
        return None
    matches = matcher(pattern)
    return refuse_subscriptions(context, sum(1 for name in context.state.topics if matches(name)))


def decide_unsubscribe(context: DecisionContext, operation: commands.Unsubscribe) -> Outcome:
    if is_pattern(operation.topic):
        pattern = find_pattern(context.state, operation.topic, operation.subscriber)
        if isinstance(pattern, Refusal):
            return pattern
        return events.PatternUnsubscribed(context.claim, operation.topic, operation.subscriber)
    found = find_named(context.state, operation.topic, operation.subscriber)
    if isinstance(found, Refusal):
        return found
    topic, _ = found
    removed = not topic.stays and len(topic.subscriptions) == 1
    return events.Unsubscribed(context.claim, topic.id, operation.subscriber, removed)


# Owners.


def decide_open(context: DecisionContext, operation: commands.Open) -> Outcome:
    if not 0 <= operation.hold_ms <= HOLD_MS_MAX:
        return Refusal("MALFORMED", f"hold_ms must be 0 to {HOLD_MS_MAX}")
    if is_pattern(operation.topic):
        return _open_pattern(context, operation)
    found = find_named(context.state, operation.topic, operation.subscriber)
    if isinstance(found, Refusal):
        return found
    topic, subscription = found
    if subscription.shared is not None:
        policy = subscription.shared.policy
        return events.Joined(
            context.claim, topic.id, operation.subscriber, subscription.epoch, subscription.acked, policy
        )
    if _has_new_owner(subscription, operation.former):
        return _fenced(operation)
    if operation.hold_ms and subscription.held_until_ms > context.now_ms:
        return NotNow("BUSY", f"another client holds '{operation.subscriber}' on '{operation.topic}' for a short time")
    note_heard(subscription, context.now_ms)
    held_until_ms = context.now_ms + operation.hold_ms if operation.hold_ms > 0 else 0
    return events.OwnerChanged(
        context.claim, topic.id, operation.subscriber, context.next_epoch(), subscription.acked, held_until_ms
    )


def _open_pattern(context: DecisionContext, operation: commands.Open) -> Outcome:
    pattern = find_pattern(context.state, operation.topic, operation.subscriber)
    if isinstance(pattern, Refusal):
        return pattern
    if operation.hold_ms:
        return Refusal("UNSUPPORTED", "a pattern subscription cannot be held")
    if _has_new_owner(pattern, operation.former):
        return _fenced(operation)
    note_heard(pattern, context.now_ms)
    return events.PatternOwnerChanged(context.claim, operation.topic, operation.subscriber, context.next_epoch())


def _has_new_owner(owner: Subscription | PatternSubscription, former: int) -> bool:
    """Return whether another client has opened the subscription since the caller's former epoch."""
    refusal = refuse_epoch(owner, former, "it") if former else None
    return refusal is not None and refusal.code == "FENCED"


def _fenced(operation: commands.Open) -> Refusal:
    return Refusal("SUBSCRIPTION_FENCED", f"another client took over '{operation.subscriber}' on '{operation.topic}'")


def decide_close(context: DecisionContext, operation: commands.Close) -> Outcome:
    found = find_exclusive(context.state, operation.topic_id, operation.subscriber, operation.epoch)
    if isinstance(found, Refusal):
        return found
    return events.OwnerClosed(context.claim, operation.topic_id, operation.subscriber)


# Seeks.


def decide_seek(context: DecisionContext, operation: commands.Seek) -> Outcome:
    if operation.time_ms < 0:
        return Refusal("MALFORMED", "time_ms must not be negative")
    if is_pattern(operation.topic):
        return _seek_pattern(context, operation)
    found = find_named(context.state, operation.topic, operation.subscriber)
    if isinstance(found, Refusal):
        return found
    topic, subscription = found
    position = seek_position(topic, operation.to, operation.time_ms)
    if isinstance(position, Refusal):
        return position
    if subscription.shared is not None:
        refusal = _refuse_key_order(topic, subscription.shared.policy, position)
        if refusal is not None:
            return refusal
    return events.Sought(context.claim, topic.id, operation.subscriber, context.next_epoch(), position)


def _seek_pattern(context: DecisionContext, operation: commands.Seek) -> Outcome:
    found = find_pattern(context.state, operation.topic, operation.subscriber)
    if isinstance(found, Refusal):
        return found
    if operation.to not in (commands.START_NEW, commands.START_EARLIEST) and not operation.time_ms:
        return Refusal("UNSUPPORTED", "a pattern subscription cannot seek to an offset: each topic has its own offsets")
    if len(found.topics) > SEEK_TOPICS_MAX:
        text = f"'{operation.topic}' has {len(found.topics)} topics; a seek can move at most {SEEK_TOPICS_MAX}"
        return Refusal("LIMIT_REACHED", text)
    positions = []
    for topic_id in found.topics:
        topic = context.state.topics_by_id[topic_id]
        position = seek_position(topic, operation.to, operation.time_ms)
        assert isinstance(position, int)
        positions.append((topic_id, position))
    return events.PatternSought(
        context.claim, operation.topic, operation.subscriber, context.next_epoch(), tuple(positions)
    )
