"""Planted bugs in transactions, delays, times to live, patterns, seeks and quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from oncemq.engine import events
from oncemq.engine.apply import dispatch, messages, topics
from oncemq.engine.decide import ticks, transactions
from oncemq.engine.decide.decision_context import DecisionContext
from oncemq.engine.snapshot import capture
from oncemq.engine.state.batch_index import BatchIndex
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.protocol import commands
from tests.simulation.bugs.registry import Patch, bug

_replace = msgspec.structs.replace


def applied(kind: type, applier: Any) -> Sequence[Patch]:
    """Apply an event with another function."""
    return [(dispatch, "_APPLIERS", {**dispatch._APPLIERS, kind: applier})]


# Transactions.


@bug("a transaction with several puts omits the last one")
def transaction_is_applied_in_part() -> Sequence[Patch]:
    def transacted(state: State, limits: Any, time_ms: int, event: events.Transacted) -> None:
        parts = event.parts[:-1] if len(event.parts) > 2 else event.parts
        for part in parts:
            dispatch._APPLIERS[type(part)](state, limits, time_ms, part)

    return applied(events.Transacted, transacted)


@bug("a transaction whose ack is refused still stores its puts")
def transaction_goes_on_after_a_refusal() -> Sequence[Patch]:
    real: Any = transactions._ack

    def ack(at: DecisionContext, part: commands.AckUpto) -> Any:
        acked = real(at, part)
        return None if getattr(acked, "code", "") == "SUBSCRIPTION_FENCED" else acked

    return [(transactions, "_ack", ack)]


@bug("a transaction may continue one that was not committed")
def transaction_ignores_a_failure_before_it() -> Sequence[Patch]:
    real: Any = transactions._ack
    return [(transactions, "_ack", lambda at, part: real(at, _replace(part, since=0)))]


@bug("an ack in a transaction does not need the owner's epoch")
def transaction_epoch_is_not_checked() -> Sequence[Patch]:
    real: Any = transactions._ack

    def ack(at: DecisionContext, part: commands.AckUpto) -> Any:
        topic = at.state.topics_by_id.get(part.topic_id)
        subscription = topic.subscriptions.get(part.subscriber) if topic is not None else None
        return real(at, _replace(part, epoch=subscription.epoch) if subscription is not None else part)

    return [(transactions, "_ack", ack)]


# Delays.


@bug("a delayed batch is released twice")
def delayed_batch_is_released_twice() -> Sequence[Patch]:
    real: Any = messages._released
    again_ms = 77_777

    def released(state: State, limits: Any, time_ms: int, event: events.Released) -> None:
        topic = state.topics_by_id[event.topic_id]
        batch = topic.delayed[event.delay_id]
        real(state, limits, time_ms, event)
        if batch.ttl_ms != again_ms:
            topic.delayed[event.delay_id] = _replace(batch, ttl_ms=again_ms)
            topic.delayed_bytes += batch.size
            state.delayed += 1
            state.count_live(batch.position, batch.size)
            state.unpublished[batch.position] = event.delay_id
            state.schedule.delays[event.delay_id] = topic.id
            state.schedule.due.add(time_ms + 1, event.delay_id)

    return applied(events.Released, released)


@bug("delayed batches are missing in snapshots")
def delayed_batch_is_missing_in_snapshots() -> Sequence[Patch]:
    real: Any = capture._topic_image
    return [(capture, "_topic_image", lambda topic: _replace(real(topic), delayed=()))]


@bug("delayed batches do not count as needed, and their segment is deleted")
def delayed_batch_is_collected() -> Sequence[Patch]:
    real: Any = messages._delayed

    def delayed(state: State, limits: Any, time_ms: int, event: events.Delayed) -> None:
        real(state, limits, time_ms, event)
        state.count_dead(event.position, event.size)

    return applied(events.Delayed, delayed)


@bug("delayed batches are released before they are due")
def delayed_batch_is_released_early() -> Sequence[Patch]:
    real: Any = ticks._release_due
    return [(ticks, "_release_due", lambda state, now_ms: real(state, now_ms + 100))]


# Time to live.


@bug("expired messages are delivered")
def expired_message_is_delivered() -> Sequence[Patch]:
    return [(BatchIndex, "skip_expired", lambda _self, offset: offset)]


@bug("messages expire before their time")
def live_message_expires() -> Sequence[Patch]:
    real: Any = ticks._take_expired
    return [(ticks, "_take_expired", lambda topic, now_ms, most: real(topic, now_ms + 100, most))]


@bug("messages that were stored before a restart do not expire")
def expiry_is_forgotten_in_a_restart() -> Sequence[Patch]:
    def find(topic: Topic) -> None:
        topic.expiries = []

    return [(capture, "rebuild_expiries", find)]


@bug("the expiry of a message deletes the next ones")
def expiry_deletes_live_messages() -> Sequence[Patch]:
    real: Any = messages._expired

    def expired(state: State, limits: Any, time_ms: int, event: events.Expired) -> None:
        index = state.topics_by_id[event.topic_id].index
        last = index.find(event.first_offsets[-1]) + 1
        behind = (index.first_offset(last),) if last < len(index.ends) else ()
        real(state, limits, time_ms, _replace(event, first_offsets=event.first_offsets + behind))

    return applied(events.Expired, expired)


# Patterns.


@bug("a topic that is created later is not attached to matching patterns")
def topic_made_later_is_not_attached() -> Sequence[Patch]:
    real: Any = topics._new_topic

    def new_topic(state: State, *args: Any, **settings: Any) -> Topic:
        patterns, state.patterns = state.patterns, {}
        topic: Topic = real(state, *args, **settings)
        state.patterns = patterns
        return topic

    return [(topics, "_new_topic", new_topic)]


@bug("the message that creates a topic is not stored for matching patterns")
def first_message_is_not_kept() -> Sequence[Patch]:
    real: Any = topics._attach

    def attach(state: State, pattern: Any, topic: Topic, acked: int) -> None:
        real(state, pattern, topic, acked)
        if not topic.next_offset:
            topic.subscriptions[pattern.key].acked = 1

    return [(topics, "_attach", attach)]


@bug("a pattern subscription does not notice that a topic has messages")
def pattern_forgets_a_topic() -> Sequence[Patch]:
    real: Any = messages._acked_many

    def acked_many(state: State, limits: Any, time_ms: int, event: events.AckedMany) -> None:
        real(state, limits, time_ms, event)
        for topic_id, _, _ in event.acks:
            for subscription in state.topics_by_id[topic_id].attached.values():
                assert subscription.pattern is not None
                subscription.pattern.pending.pop(topic_id, None)

    return applied(events.AckedMany, acked_many)


# Seeks.


@bug("a seek does not change the epoch: a late ack undoes it")
def seek_keeps_the_epoch() -> Sequence[Patch]:
    real: Any = topics._sought

    def sought(state: State, limits: Any, time_ms: int, event: events.Sought) -> None:
        subscription = state.topics_by_id[event.topic_id].subscriptions[event.subscriber]
        epoch = subscription.epoch
        real(state, limits, time_ms, event)
        subscription.epoch, subscription.sought_epoch = epoch, 0

    return applied(events.Sought, sought)


@bug("a seek of a pattern subscription does not change the epoch")
def pattern_seek_keeps_the_epoch() -> Sequence[Patch]:
    real: Any = topics._pattern_sought

    def sought(state: State, limits: Any, time_ms: int, event: events.PatternSought) -> None:
        pattern = state.patterns[(event.pattern, event.subscriber)]
        epoch = pattern.epoch
        real(state, limits, time_ms, event)
        pattern.epoch, pattern.sought_epoch = epoch, 0

    return applied(events.PatternSought, sought)


# Quotas.


@bug("a quota deletes messages without moving the positions")
def drop_leaves_positions_behind() -> Sequence[Patch]:
    return [(Topic, "drop_needed", lambda _self, _subscription, _floor: None)]


@bug("messages that a quota dropped are not reported")
def dropped_messages_are_not_counted() -> Sequence[Patch]:
    real: Any = Topic.drop_needed

    def lose(self: Topic, subscription: Subscription, floor: int) -> None:
        real(self, subscription, floor)
        subscription.dropped = 0

    return [(Topic, "drop_needed", lose)]


@bug("the owner of a subscription that a quota deleted is not told so")
def ended_subscription_is_forgotten() -> Sequence[Patch]:
    real: Any = topics._subscription_expired

    def expired(state: State, limits: Any, time_ms: int, event: events.SubscriptionExpired) -> None:
        real(state, limits, time_ms, event)
        state.topics_by_id[event.topic_id].expired_names.clear()

    return applied(events.SubscriptionExpired, expired)


@bug("a topic with the policy refuse drops messages at its quota")
def full_topic_drops_what_it_acknowledged() -> Sequence[Patch]:
    def make_room(state: State, topic_id: int) -> Iterator[events.Event]:
        topic = state.topics_by_id.get(topic_id)
        if topic is not None and topic.stored_bytes > topic.quota_bytes:
            yield events.Dropped(topic.id, ticks._quota_floor(topic))

    def watch(state: State, topic: Topic) -> None:
        if topic.quota_bytes and topic.stored_bytes > topic.quota_bytes // 2:
            state.schedule.over_quota.add(topic.id)

    def floor(topic: Topic) -> int:
        return topic.index.ends[topic.index.head] if len(topic.index) else topic.next_offset

    def make_room_early(state: State, topic_id: int) -> Iterator[events.Event]:
        topic = state.topics_by_id.get(topic_id)
        if topic is not None and topic.overflow == commands.REFUSE and topic.stored_bytes > topic.quota_bytes // 2:
            yield events.Dropped(topic.id, floor(topic))
        else:
            yield from make_room(state, topic_id)

    return [(ticks, "_reduce_to_quota", make_room_early), (messages, "schedule_quota", watch)]
