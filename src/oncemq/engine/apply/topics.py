"""Applies events of topics and subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncemq.engine import events
from oncemq.engine.state.expiry import schedule_quota, schedule_retention
from oncemq.engine.state.owners import TOPIC
from oncemq.engine.state.pattern_subscription import PatternSubscription
from oncemq.engine.state.shared_subscription import SharedState
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Topic
from oncemq.engine.state.topic_schema import TopicSchema
from oncemq.protocol.commands import SUBSCRIPTION
from oncemq.protocol.limits import EXPIRED_NAMES_MAX, Limits
from oncemq.protocol.schema import SchemaVersion


def _new_topic(state: State, topic_id: int, name: str, stays: bool, retain_ms: int = 0, retain_bytes: int = 0) -> Topic:
    topic = Topic(topic_id, name, stays, retain_ms, retain_bytes)
    if state.capture is not None:
        topic.captured = state.capture.generation
    state.topics[name] = state.topics_by_id[topic_id] = topic
    if state.topic_names is not None:
        state.topic_names.add(name)
    state.next_topic_id = topic_id + 1
    for pattern in state.patterns.values():
        if pattern.matches(name):
            _attach(state, pattern, topic, 0)
    return topic


def _attach(state: State, pattern: PatternSubscription, topic: Topic, acked: int) -> None:
    pattern.attach(topic, topic.add_subscription(pattern.key, acked))
    state.subscriptions += 1


def find_or_create_topic(state: State, topic_id: int, new_name: str, *, stays: bool) -> Topic:
    """Return the topic of an event, which creates it if the event has a name."""
    return _new_topic(state, topic_id, new_name, stays) if new_name else state.topic_to_change(topic_id)


def _topic_created(state: State, _limits: Limits, _time_ms: int, event: events.TopicCreated) -> None:
    if event.created:
        topic = _new_topic(state, event.topic_id, event.name, True, event.retain_ms, event.retain_bytes)
        topic.quota_bytes, topic.overflow = event.quota_bytes, event.overflow
        return
    topic = state.topic_to_change(event.topic_id)
    if topic.stays and not event.altered:
        return
    retained = topic.retained
    topic.stays = True
    topic.retain_ms, topic.retain_bytes = event.retain_ms, event.retain_bytes
    topic.quota_bytes, topic.overflow = event.quota_bytes, event.overflow
    if not retained:
        topic.trimmed = topic.index.first
        topic.above_trim_bytes = topic.stored_bytes
    state.reclaim(topic)
    schedule_retention(state, topic)
    schedule_quota(state, topic)


def _delete_topic(state: State, topic: Topic) -> None:
    positions, sizes = topic.index.drop_below(topic.index.end)
    state.count_all_dead(positions, sizes)
    for batch in topic.delayed.values():
        state.count_dead(batch.position, batch.size)
        del state.unpublished[batch.position]
        del state.schedule.delays[batch.delay_id]
        state.schedule.due.discard(batch.delay_id)
    state.delayed -= len(topic.delayed)
    for key, subscription in topic.subscriptions.items():
        state.schedule.shared.discard((topic.id, key))
        state.schedule.idle.discard((topic.id, key))
        state.owners.forget(SUBSCRIPTION, topic.name, key)
        if subscription.pattern is not None:
            subscription.pattern.detach(topic.id)
    state.subscriptions -= len(topic.subscriptions)
    state.schedule.retention.discard(topic.id)
    state.schedule.expiry.discard(topic.id)
    state.owners.forget(TOPIC, "", topic.name)
    del state.topics[topic.name]
    del state.topics_by_id[topic.id]
    if state.topic_names is not None:
        state.topic_names.remove(topic.name)


def _topic_deleted(state: State, _limits: Limits, _time_ms: int, event: events.TopicDeleted) -> None:
    _delete_topic(state, state.topic_to_change(event.topic_id))


def _schema_changed(state: State, _limits: Limits, time_ms: int, event: events.SchemaChanged) -> None:
    topic = state.topic_to_change(event.topic_id)
    versions = topic.schema.versions if topic.schema is not None else ()
    if event.schema is not None:
        versions = (*versions, SchemaVersion(event.version, event.schema, time_ms))
    topic.schema = TopicSchema(versions, event.rule, event.check)


def _subscribed(state: State, _limits: Limits, time_ms: int, event: events.Subscribed) -> None:
    topic = find_or_create_topic(state, event.topic_id, event.topic_name, stays=False)
    if not event.created:
        return
    subscription = topic.add_subscription(event.subscriber, event.acked)
    state.subscriptions += 1
    if event.idle_ms:
        subscription.idle_ms = event.idle_ms
        state.schedule.idle.add(time_ms, (topic.id, event.subscriber))
    if event.sharing is not None:
        subscription.shared = SharedState(event.sharing, event.acked)
        subscription.epoch = event.epoch
        state.next_epoch = event.epoch + 1
        if event.sharing.key_order:
            if not topic.key_orders:
                topic.keyed_from = topic.next_offset
            topic.key_orders += 1


def _unsubscribed(state: State, _limits: Limits, _time_ms: int, event: events.Unsubscribed) -> None:
    _delete_subscription(state, state.topic_to_change(event.topic_id), event.subscriber, event.topic_removed)


def _delete_subscription(state: State, topic: Topic, subscriber: str, topic_removed: bool) -> None:
    topic.remove_subscription(subscriber)
    state.owners.forget(SUBSCRIPTION, topic.name, subscriber)
    state.schedule.shared.discard((topic.id, subscriber))
    state.schedule.idle.discard((topic.id, subscriber))
    state.subscriptions -= 1
    if topic_removed:
        _delete_topic(state, topic)
    else:
        state.reclaim(topic)


def _subscription_expired(state: State, _limits: Limits, _time_ms: int, event: events.SubscriptionExpired) -> None:
    topic = state.topic_to_change(event.topic_id)
    subscription = topic.subscriptions[event.subscriber]
    if subscription.pattern is not None:
        # The pattern subscription continues on its other topics, and reports the loss on this one.
        topic.drop_needed(subscription, topic.next_offset)
        topic.update_low_watermark()
        state.reclaim(topic)
    else:
        _delete_subscription(state, topic, event.subscriber, False)
        topic.expired_names[event.subscriber] = None
        if len(topic.expired_names) > EXPIRED_NAMES_MAX:
            del topic.expired_names[next(iter(topic.expired_names))]
    schedule_quota(state, topic)


def _owner_changed(state: State, _limits: Limits, _time_ms: int, event: events.OwnerChanged) -> None:
    subscription = state.topic_to_change(event.topic_id).subscriptions[event.subscriber]
    subscription.epoch = event.epoch
    subscription.sought_epoch = 0
    subscription.held_until_ms = event.held_until_ms
    state.next_epoch = event.epoch + 1


def _owner_closed(state: State, _limits: Limits, _time_ms: int, event: events.OwnerClosed) -> None:
    state.topic_to_change(event.topic_id).subscriptions[event.subscriber].held_until_ms = 0


def _sought(state: State, _limits: Limits, _time_ms: int, event: events.Sought) -> None:
    topic = state.topic_to_change(event.topic_id)
    subscription = topic.subscriptions[event.subscriber]
    subscription.sought_epoch = subscription.sought_epoch or subscription.epoch
    subscription.epoch = event.epoch
    subscription.held_until_ms = 0
    state.next_epoch = event.epoch + 1
    if subscription.shared is not None:
        subscription.shared.seek(event.acked)
    topic.seek(event.subscriber, event.acked)
    state.reclaim(topic)


def _pattern_subscribed(state: State, _limits: Limits, time_ms: int, event: events.PatternSubscribed) -> None:
    if not event.created:
        return
    pattern = PatternSubscription(event.pattern, event.subscriber, event.epoch, idle_ms=event.idle_ms)
    if event.idle_ms:
        state.schedule.idle.add(time_ms, (0, pattern.key))
    state.patterns[(event.pattern, event.subscriber)] = pattern
    state.next_epoch = event.epoch + 1
    matches = pattern.matches
    for topic in [topic for name, topic in state.topics.items() if matches(name)]:
        state.topic_to_change(topic.id)
        _attach(state, pattern, topic, topic.index.first if event.earliest else topic.next_offset)


def _pattern_unsubscribed(state: State, _limits: Limits, _time_ms: int, event: events.PatternUnsubscribed) -> None:
    pattern = state.patterns.pop((event.pattern, event.subscriber))
    state.schedule.idle.discard((0, pattern.key))
    state.owners.forget(SUBSCRIPTION, event.pattern, event.subscriber)
    for topic_id in list(pattern.topics):
        topic = state.topic_to_change(topic_id)
        removed = not topic.stays and len(topic.subscriptions) == 1
        _delete_subscription(state, topic, pattern.key, removed)


def _pattern_owner_changed(state: State, _limits: Limits, _time_ms: int, event: events.PatternOwnerChanged) -> None:
    pattern = state.patterns[(event.pattern, event.subscriber)]
    pattern.epoch = event.epoch
    pattern.sought_epoch = 0
    state.next_epoch = event.epoch + 1


def _pattern_sought(state: State, _limits: Limits, _time_ms: int, event: events.PatternSought) -> None:
    pattern = state.patterns[(event.pattern, event.subscriber)]
    pattern.sought_epoch = pattern.sought_epoch or pattern.epoch
    pattern.epoch = event.epoch
    state.next_epoch = event.epoch + 1
    for topic_id, acked in event.positions:
        topic = state.topic_to_change(topic_id)
        topic.seek(pattern.key, acked)
        state.reclaim(topic)


APPLIERS: dict[type, Callable[[State, Limits, int, Any], None]] = {
    events.TopicCreated: _topic_created,
    events.TopicDeleted: _topic_deleted,
    events.SchemaChanged: _schema_changed,
    events.Subscribed: _subscribed,
    events.Unsubscribed: _unsubscribed,
    events.SubscriptionExpired: _subscription_expired,
    events.OwnerChanged: _owner_changed,
    events.OwnerClosed: _owner_closed,
    events.Sought: _sought,
    events.PatternSubscribed: _pattern_subscribed,
    events.PatternUnsubscribed: _pattern_unsubscribed,
    events.PatternOwnerChanged: _pattern_owner_changed,
    events.PatternSought: _pattern_sought,
}
