"""What time brings: expiry, as events. A tick costs what has expired."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from oncemq.engine import events as ev
from oncemq.engine.state import State
from oncemq.engine.topic import Topic
from oncemq.limits import Limits

#: So that one round stays short; the rest comes with the next.
EXPIRED_PER_TICK_MAX = 24
#: What the events of one tick take in the journal at the most.
TICK_BYTES_MAX = 16 * 1024


def expire(state: State, limits: Limits, now_ms: int) -> Iterator[ev.Event]:
    """Each event must be applied before the next is asked for."""
    for session_id in state.schedule.sessions.take(now_ms, EXPIRED_PER_TICK_MAX):
        session = state.sessions_by_id.get(int(session_id))
        if session is None:
            continue
        due_ms = session.active_ms + limits.session_idle_ms
        if due_ms <= now_ms:
            yield ev.SessionEnded(session.id)
        else:
            state.schedule.sessions.add(due_ms, session.id)
    yield from _expire_stages(state, now_ms)
    yield from _expire_keys(state, limits, now_ms)
    for topic_id in state.schedule.retention.take(now_ms, EXPIRED_PER_TICK_MAX):
        yield from _trim(state, int(topic_id), now_ms)
    for topic_id in list(islice(state.schedule.oversized, EXPIRED_PER_TICK_MAX)):
        state.schedule.oversized.discard(topic_id)
        yield from _trim(state, topic_id, now_ms)


def _expire_stages(state: State, now_ms: int) -> Iterator[ev.Event]:
    expired = []
    for name in state.schedule.stages.take(now_ms, EXPIRED_PER_TICK_MAX):
        stage = state.stages.get(str(name))
        if stage is None:
            continue
        if stage.expires_ms <= now_ms:
            expired.append(stage.name)
        else:
            state.schedule.stages.add(stage.expires_ms, stage.name)
    if expired:
        yield ev.StagesExpired(tuple(expired))


def _expire_keys(state: State, limits: Limits, now_ms: int) -> Iterator[ev.Event]:
    count = 0
    for entry in islice(state.keys.values(), EXPIRED_PER_TICK_MAX):
        if entry.time_ms + limits.key_ms > now_ms:
            break
        count += 1
    if count:
        yield ev.KeysExpired(count)


def _trim(state: State, topic_id: int, now_ms: int) -> Iterator[ev.Event]:
    topic = state.topics_by_id.get(topic_id)
    if topic is None:
        return
    floor = _retention_floor(topic, now_ms)
    if floor > topic.trimmed:
        yield ev.Trimmed(topic.id, floor)
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
