"""Shared subscriptions as events change them: each finds its place, settles.py does the work. Nothing here decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncemq.engine import events
from oncemq.engine.decide import settles
from oncemq.engine.state.shared_subscription import Shared
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Topic
from oncemq.protocol.limits import Limits


def _leased(state: State, _limits: Limits, time_ms: int, event: events.Leased) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    floor = settles.apply_leased(topic, shared, time_ms, event)
    if event.token:
        state.next_epoch = event.token + 1
    _after_tasks(state, topic, event.subscriber, shared, floor)


def _settled(state: State, _limits: Limits, time_ms: int, event: events.Settled) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    floor = settles.apply_settled(topic, shared, time_ms, event)
    _after_tasks(state, topic, event.subscriber, shared, floor)


def _extended(state: State, _limits: Limits, time_ms: int, event: events.Extended) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    settles.apply_extended(shared, time_ms, event)
    _after_tasks(state, topic, event.subscriber, shared, 0)


def _leases_expired(state: State, _limits: Limits, time_ms: int, event: events.LeasesExpired) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    settles.apply_leases_expired(topic, shared, time_ms, event)
    _after_tasks(state, topic, event.subscriber, shared, 0)


def _members_left(state: State, _limits: Limits, time_ms: int, event: events.MembersLeft) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    settles.apply_members_left(topic, shared, time_ms, event)
    _after_tasks(state, topic, event.subscriber, shared, 0)


def _leases_begun_anew(state: State, _limits: Limits, _time_ms: int, event: events.LeasesBegunAnew) -> None:
    for topic_id in [topic.id for topic in state.topics_by_id.values()]:
        for subscriber, subscription in state.topics_by_id[topic_id].subscriptions.items():
            if subscription.shared is not None:
                topic, shared = _shared_to_change(state, topic_id, subscriber)
                settles.begin_anew(shared, event.time_ms)
                _after_tasks(state, topic, subscriber, shared, 0)


def _shared_to_change(state: State, topic_id: int, subscriber: str) -> tuple[Topic, Shared]:
    topic = state.topic_to_change(topic_id)
    shared = topic.subscriptions[subscriber].shared
    assert shared is not None
    return topic, shared


def _after_tasks(state: State, topic: Topic, subscriber: str, shared: Shared, floor: int) -> None:
    """What is done may be collected, and something may fall due."""
    if floor > topic.subscriptions[subscriber].acked and topic.ack(subscriber, floor):
        state.collect(topic)
    due_ms = settles.next_ms(shared)
    if due_ms is not None:
        state.schedule.shared.add(due_ms, (topic.id, subscriber))


APPLIERS: dict[type, Callable[[State, Limits, int, Any], None]] = {
    events.Leased: _leased,
    events.Settled: _settled,
    events.Extended: _extended,
    events.LeasesExpired: _leases_expired,
    events.LeasesBegunAnew: _leases_begun_anew,
    events.MembersLeft: _members_left,
}
