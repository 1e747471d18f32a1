"""Schedules the next check of a topic: retention, time to live, quota. Changes only the schedule."""

from __future__ import annotations

from heapq import heapify, heappush

from oncemq.engine.state.batch_index import EXPIRED
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Topic

#: Heap entries of deleted batches are kept until there are this many and they are half of all entries.
_STALE_MIN = 64


def schedule_retention(state: State, topic: Topic) -> None:
    if topic.retain_ms and topic.trimmed < topic.index.end:
        oldest_ms = topic.index.times[topic.index.find(max(topic.trimmed, topic.index.first))]
        state.schedule.retention.add(oldest_ms + topic.retain_ms, topic.id)
    if topic.retain_bytes and topic.above_trim_bytes > topic.retain_bytes:
        state.schedule.oversized.add(topic.id)


def schedule_quota(state: State, topic: Topic) -> None:
    if topic.is_over_quota:
        state.schedule.over_quota.add(topic.id)


def schedule_expiry(state: State, topic: Topic, expires_ms: int, first_offset: int) -> None:
    """Schedule the end of a batch's time to live."""
    if len(topic.expiries) > 2 * topic.index.expiring + _STALE_MIN:
        rebuild_expiries(topic)
    else:
        heappush(topic.expiries, (expires_ms, first_offset))
    state.schedule.expiry.add(topic.expiries[0][0], topic.id)


def rebuild_expiries(topic: Topic) -> None:
    """Rebuild the heap of expiry times from all stored batches."""
    index = topic.index
    topic.expiries = [
        (expires_ms, index.first_offset(entry))
        for entry, expires_ms in enumerate(index.expires[index.head :], index.head)
        if expires_ms not in (0, EXPIRED)
    ]
    heapify(topic.expiries)
