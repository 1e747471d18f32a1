"""When to look at a topic again: retention, time to live, quota. Only the schedule changes here."""

from __future__ import annotations

from heapq import heapify, heappush

from oncemq.engine.state.batch_index import EXPIRED
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Topic

#: Entries of batches that are gone are kept until they are that many and half of all.
_STALE_MIN = 64


def watch_retention(state: State, topic: Topic) -> None:
    if topic.retain_ms and topic.trimmed < topic.index.end:
        oldest_ms = topic.index.times[topic.index.find(max(topic.trimmed, topic.index.first))]
        state.schedule.retention.add(oldest_ms + topic.retain_ms, topic.id)
    if topic.retain_bytes and topic.above_trim_bytes > topic.retain_bytes:
        state.schedule.oversized.add(topic.id)


def watch_quota(state: State, topic: Topic) -> None:
    if topic.overflows:
        state.schedule.over_quota.add(topic.id)


def watch_expiry(state: State, topic: Topic, expires_ms: int, first_offset: int) -> None:
    """A batch will expire."""
    if len(topic.expiries) > 2 * topic.index.mortal + _STALE_MIN:
        find_expiries(topic)
    else:
        heappush(topic.expiries, (expires_ms, first_offset))
    state.schedule.expiry.add(topic.expiries[0][0], topic.id)


def find_expiries(topic: Topic) -> None:
    """Of all batches that are stored."""
    index = topic.index
    topic.expiries = [
        (expires_ms, index.first_offset(entry))
        for entry, expires_ms in enumerate(index.expires[index.head :], index.head)
        if expires_ms not in (0, EXPIRED)
    ]
    heapify(topic.expiries)
