"""Applies events of shared subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from oncemq.engine import events
from oncemq.engine.state.batch_index import BatchIndex
from oncemq.engine.state.offset_ranges import Spans, merged
from oncemq.engine.state.shared_subscription import Lease, SharedState
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Topic
from oncemq.protocol.limits import Limits


def _leased(state: State, _limits: Limits, time_ms: int, event: events.Leased) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    ranges = [(first, first + count) for first, count, _ in event.ranges]
    skipped = [(first, first + count) for first, count in event.skipped]
    blocked = [(first, first + count) for first, count in event.blocked]
    previous_next = shared.next_offset
    shared.next_offset = max([previous_next, *(end for _, end in (*ranges, *skipped, *blocked))])
    for first, count in merged(_below(previous_next, [*ranges, *skipped])):
        shared.redeliveries.remove(first, first + count)
    if shared.policy.key_order:
        for first, end in ranges:
            for offset, key_hash in _key_hashes(topic.index, max(first, previous_next), end):
                shared.keys.occupy(offset, key_hash)
        for first, end in blocked:
            for offset, key_hash in _key_hashes(topic.index, first, end):
                shared.keys.block(offset, key_hash)
    # After the blocked messages: one of them may wait for a skipped one, and becomes available now.
    for first, end in skipped:
        shared.ack(first, end)
    if event.token:
        shared.update_member(event.member, event.number, time_ms)
        spans = Spans((first, first + count, tries) for first, count, tries in event.ranges)
        shared.add_lease(Lease(event.token, event.member, event.number, event.until_ms, spans))
        state.next_epoch = event.token + 1
    _after_change(state, topic, event.subscriber, shared)


def _below(offset: int, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    return ((first, min(end, offset)) for first, end in ranges if first < offset)


def _key_hashes(index: BatchIndex, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, key hash) of a range, which may cover several batches."""
    entry = index.find(first)
    while first < end:
        entry_end = min(end, index.ends[entry])
        yield from index.key_hashes(entry, first, entry_end)
        first = entry_end
        entry += 1


def _settled(state: State, _limits: Limits, time_ms: int, event: events.Settled) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    for token, first, count in event.done:
        removed = shared.remove_from_lease(token, first, first + count, time_ms)
        assert sum(span_end - span_first for span_first, span_end, _ in removed) == count
        shared.ack(first, first + count)
    for token, first, count, not_before_ms in event.returned:
        for span_first, span_end, tries in shared.remove_from_lease(token, first, first + count, time_ms):
            shared.redeliveries.add(span_first, span_end, tries, not_before_ms)
    _after_change(state, topic, event.subscriber, shared)


def _extended(state: State, _limits: Limits, _time_ms: int, event: events.Extended) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    for token in event.tokens:
        shared.leases[token].until_ms = event.until_ms
    _schedule(state, topic, event.subscriber, shared)


def _leases_expired(state: State, _limits: Limits, time_ms: int, event: events.LeasesExpired) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    for token in event.tokens:
        shared.return_lease(token, time_ms)
    _schedule(state, topic, event.subscriber, shared)


def _members_left(state: State, _limits: Limits, time_ms: int, event: events.MembersLeft) -> None:
    topic, shared = _shared_to_change(state, event.topic_id, event.subscriber)
    for name in event.members:
        shared.remove_member(name, time_ms)
    _schedule(state, topic, event.subscriber, shared)


def _leases_restarted(state: State, _limits: Limits, _time_ms: int, event: events.LeasesRestarted) -> None:
    for topic_id, topic in state.topics_by_id.items():
        for subscriber, subscription in topic.subscriptions.items():
            if subscription.shared is not None:
                _, shared = _shared_to_change(state, topic_id, subscriber)
                for lease in shared.leases.values():
                    lease.until_ms = event.time_ms + shared.policy.lease_ms
                _schedule(state, topic, subscriber, shared)


def _shared_to_change(state: State, topic_id: int, subscriber: str) -> tuple[Topic, SharedState]:
    topic = state.topic_to_change(topic_id)
    shared = topic.subscriptions[subscriber].shared
    assert shared is not None
    return topic, shared


def _after_change(state: State, topic: Topic, subscriber: str, shared: SharedState) -> None:
    """Move the position of the subscription to its floor, and delete what is no longer needed."""
    floor = shared.floor()
    if floor > topic.subscriptions[subscriber].acked and topic.ack(subscriber, floor):
        state.reclaim(topic)
    _schedule(state, topic, subscriber, shared)


def _schedule(state: State, topic: Topic, subscriber: str, shared: SharedState) -> None:
    due_ms = shared.next_ms()
    if due_ms is not None:
        state.schedule.shared.add(due_ms, (topic.id, subscriber))


APPLIERS: dict[type, Callable[[State, Limits, int, Any], None]] = {
    events.Leased: _leased,
    events.Settled: _settled,
    events.Extended: _extended,
    events.LeasesExpired: _leases_expired,
    events.LeasesRestarted: _leases_restarted,
    events.MembersLeft: _members_left,
}
