"""Shared subscriptions as events change them: each finds its place, tasks.py does the work. Nothing here decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncemq.engine import events as ev
from oncemq.engine import tasks
from oncemq.engine.sharing import Shared
from oncemq.engine.state import State
from oncemq.engine.topic import Topic
from oncemq.limits import Limits


def _leased(state: State, _limits: Limits, time_ms: int, event: ev.Leased) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    floor = tasks.apply_leased(topic, shared, time_ms, event)
    if event.token:
        state.next_epoch = event.token + 1
    _after_tasks(state, topic, event.subscriber, shared, floor)


def _settled(state: State, _limits: Limits, time_ms: int, event: ev.Settled) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    floor = tasks.apply_settled(topic, shared, time_ms, event)
    _after_tasks(state, topic, event.subscriber, shared, floor)


def _extended(state: State, _limits: Limits, time_ms: int, event: ev.Extended) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    tasks.apply_extended(shared, time_ms, event)
    _after_tasks(state, topic, event.subscriber, shared, 0)


def _leases_expired(state: State, _limits: Limits, time_ms: int, event: ev.LeasesExpired) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    tasks.apply_leases_expired(topic, shared, time_ms, event)
    _after_tasks(state, topic, event.subscriber, shared, 0)


def _members_left(state: State, _limits: Limits, time_ms: int, event: ev.MembersLeft) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    tasks.apply_members_left(topic, shared, time_ms, event)
    _after_tasks(state, topic, event.subscriber, shared, 0)


def _leases_begun_anew(state: State, _limits: Limits, _time_ms: int, event: ev.LeasesBegunAnew) -> None:
    for topic_id in [topic.id for topic in state.topics_by_id.values()]:
        for subscriber, subscription in state.topics_by_id[topic_id].subscriptions.items():
            if subscription.shared is not None:
                topic, shared = _shared_to_change(state, topic_id, subscriber)
                tasks.begin_anew(shared, event.time_ms)
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
    due_ms = tasks.next_ms(shared)
    if due_ms is not None:
        state.schedule.shared.add(due_ms, (topic.id, subscriber))


APPLIERS: dict[type, Callable[[State, Limits, int, Any], None]] = {
    ev.Leased: _leased,
    ev.Settled: _settled,
    ev.Extended: _extended,
    ev.LeasesExpired: _leases_expired,
    ev.LeasesBegunAnew: _leases_begun_anew,
    ev.MembersLeft: _members_left,
}
