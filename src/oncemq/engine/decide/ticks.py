"""What time brings: expiry, as events. A tick costs what has expired."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop
from itertools import islice

from oncemq.engine import events
from oncemq.engine.decide import settles
from oncemq.engine.state.batch_index import EXPIRED
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Topic
from oncemq.protocol.commands import DROP
from oncemq.protocol.limits import Limits

#: So that one round stays short; the rest comes with the next.
EXPIRED_PER_TICK_MAX = 24
#: The same for batches: delayed ones that are due, and those whose time to live is over.
BATCHES_PER_TICK_MAX = 64
#: And for what has long names: shared subscriptions, members and leases of each, topics at their quota.
NAMED_PER_TICK_MAX = 4
#: What the events of one tick take in the journal at the most.
TICK_BYTES_MAX = 32 * 1024


def expire(state: State, limits: Limits, now_ms: int) -> Iterator[events.Event]:
    """Each event must be applied before the next is asked for."""
    if state.is_recovered:
        state.is_recovered = False
        if state.schedule.shared:
            yield events.LeasesBegunAnew(now_ms)
    yield from _expire_sessions(state, limits, now_ms)
    yield from _expire_stages(state, now_ms)
    yield from _expire_keys(state, limits, now_ms)
    yield from _release(state, now_ms)
    yield from _expire_batches(state, now_ms)
    for topic_id, subscriber in state.schedule.shared.take(now_ms, NAMED_PER_TICK_MAX):
        yield from _expire_tasks(state, topic_id, subscriber, now_ms)
    for topic_id in state.schedule.retention.take(now_ms, EXPIRED_PER_TICK_MAX):
        yield from _trim(state, topic_id, now_ms)
    for topic_id in list(islice(state.schedule.over_quota, NAMED_PER_TICK_MAX)):
        state.schedule.over_quota.discard(topic_id)
        yield from _make_room(state, topic_id)
    for topic_id in list(islice(state.schedule.oversized, EXPIRED_PER_TICK_MAX)):
        state.schedule.oversized.discard(topic_id)
        yield from _trim(state, topic_id, now_ms)


def _expire_sessions(state: State, limits: Limits, now_ms: int) -> Iterator[events.Event]:
    for session_id in state.schedule.sessions.take(now_ms, EXPIRED_PER_TICK_MAX):
        session = state.sessions_by_id.get(session_id)
        if session is None:
            continue
        due_ms = session.active_ms + limits.session_idle_ms
        if due_ms <= now_ms:
            yield events.SessionEnded(session.id)
        else:
            state.schedule.sessions.add(due_ms, session.id)


def _expire_stages(state: State, now_ms: int) -> Iterator[events.Event]:
    expired = []
    for name in state.schedule.stages.take(now_ms, EXPIRED_PER_TICK_MAX):
        stage = state.stages.get(name)
        if stage is None:
            continue
        if stage.expires_ms <= now_ms:
            expired.append(stage.name)
        else:
            state.schedule.stages.add(stage.expires_ms, stage.name)
    if expired:
        yield events.StagesExpired(tuple(expired))


def _expire_keys(state: State, limits: Limits, now_ms: int) -> Iterator[events.Event]:
    count = 0
    for entry in islice(state.keys.values(), EXPIRED_PER_TICK_MAX):
        if entry.time_ms + limits.key_ms > now_ms:
            break
        count += 1
    if count:
        yield events.KeysExpired(count)


def _release(state: State, now_ms: int) -> Iterator[events.Event]:
    """Delayed batches that are due, in the order of their time."""
    for delay_id in state.schedule.due.take(now_ms, BATCHES_PER_TICK_MAX):
        topic = state.topics_by_id.get(state.schedule.delays.get(delay_id, 0))
        if topic is not None:
            yield events.Released(topic.id, delay_id, topic.next_offset)


def _expire_batches(state: State, now_ms: int) -> Iterator[events.Event]:
    left = BATCHES_PER_TICK_MAX
    for topic_id in state.schedule.expiry.take(now_ms, EXPIRED_PER_TICK_MAX):
        topic = state.topics_by_id.get(topic_id)
        if topic is None:
            continue
        over = _take_expired(topic, now_ms, left)
        left -= len(over)
        if over:
            yield events.Expired(topic.id, tuple(over))
        if topic.expiries:
            state.schedule.expiry.add(topic.expiries[0][0], topic.id)


def _take_expired(topic: Topic, now_ms: int, most: int) -> list[int]:
    """First offsets of batches whose time to live is over."""
    index, heap = topic.index, topic.expiries
    over: list[int] = []
    while heap and heap[0][0] <= now_ms and len(over) < most:
        _, first_offset = heappop(heap)
        if first_offset >= index.first and index.expires[index.find(first_offset)] != EXPIRED:
            over.append(first_offset)
    return over


def _expire_tasks(state: State, topic_id: int, subscriber: str, now_ms: int) -> Iterator[events.Event]:
    """Leases that are over, members that are gone; and who waits for messages that come back may look."""
    topic = state.topics_by_id.get(topic_id)
    subscription = topic.subscriptions.get(subscriber) if topic is not None else None
    if topic is None or subscription is None or (shared := subscription.shared) is None:
        return
    yield from settles.expire(topic_id, subscriber, shared, now_ms, NAMED_PER_TICK_MAX)
    state.schedule.ready.add(topic_id)
    due_ms = settles.next_ms(shared)
    if due_ms is not None:
        state.schedule.shared.add(due_ms, (topic_id, subscriber))


def _make_room(state: State, topic_id: int) -> Iterator[events.Event]:
    """A topic holds more than its quota: the oldest messages go, or the slowest subscription does."""
    topic = state.topics_by_id.get(topic_id)
    if topic is None or not topic.overflows:
        # By its settings, perhaps, which have changed meanwhile.
        return
    if topic.overflow == DROP:
        yield events.Dropped(topic.id, _quota_floor(topic))
        return
    slowest = next(entry for entry in topic.subscriptions.values() if entry.acked == topic.needed)
    yield events.SubscriptionExpired(topic.id, slowest.subscriber)


def _quota_floor(topic: Topic) -> int:
    index, excess = topic.index, topic.held_bytes - topic.quota_bytes
    entry = index.head
    while excess > 0 and entry < len(index.ends):
        excess -= index.sizes[entry]
        entry += 1
    return index.first_offset(entry) if entry < len(index.ends) else index.end


def _trim(state: State, topic_id: int, now_ms: int) -> Iterator[events.Event]:
    topic = state.topics_by_id.get(topic_id)
    if topic is None:
        return
    floor = _retention_floor(topic, now_ms)
    if floor > topic.trimmed:
        yield events.Trimmed(topic.id, floor)
    elif topic.retain_ms and topic.trimmed < topic.next_offset:
        oldest = topic.index.find(max(topic.trimmed, topic.index.first))
        state.schedule.retention.add(topic.index.times[oldest] + topic.retain_ms, topic.id)


def _retention_floor(topic: Topic, now_ms: int) -> int:
    """With both kinds of retention, whichever lets go first."""
    index = topic.index
    floor = topic.trimmed
    entry = index.find(max(floor, index.first))
    above_bytes = topic.above_trim_bytes
    while entry < len(index.ends):
        too_old = topic.retain_ms and index.times[entry] + topic.retain_ms <= now_ms
        too_much = topic.retain_bytes and above_bytes > topic.retain_bytes
        if not too_old and not too_much:
            break
        above_bytes -= index.sizes[entry]
        floor = index.ends[entry]
        entry += 1
    return floor
