"""Decides what the passing of time leads to: expiry, due batches, retention and quotas.

A tick takes due entries from the schedule, which is derived from the state and not recorded. It yields events for them,
or adds them again with a later time. Its cost depends on what is due, not on what exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop
from itertools import islice

from oncemq.engine import events
from oncemq.engine.state.batch_index import EXPIRED
from oncemq.engine.state.pattern_subscription import PatternSubscription
from oncemq.engine.state.shared_subscription import SharedState
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.protocol.commands import BY_PATTERN, DROP
from oncemq.protocol.limits import Limits

#: Limits the length of a round. The rest is processed in the next one.
EXPIRED_PER_TICK_MAX = 24
#: The same for batches: delayed ones that are due, and expired ones.
BATCHES_PER_TICK_MAX = 64
#: The same for entities with long names: shared subscriptions, members of each, topics at their quota.
NAMED_PER_TICK_MAX = 4
#: The same for batches that retention or the quota of one topic deletes.
TRIMMED_PER_TICK_MAX = 2_000
#: A lease token needs at most this fraction of the journal space of a member's name.
_TOKENS_PER_NAME = 25
#: Maximum journal space of the events of one tick.
TICK_BYTES_MAX = 32 * 1024


def expire(state: State, limits: Limits, now_ms: int) -> Iterator[events.Event]:
    """Yield the events that are due. Each must be applied before the next one is requested."""
    if state.is_recovered:
        state.is_recovered = False
        if state.schedule.shared:
            yield events.LeasesRestarted(now_ms)
    yield from _expire_sessions(state, limits, now_ms)
    yield from _expire_stages(state, now_ms)
    yield from _expire_keys(state, limits, now_ms)
    yield from _release_due(state, now_ms)
    yield from _expire_batches(state, now_ms)
    for topic_id, key in state.schedule.idle.take(now_ms, NAMED_PER_TICK_MAX):
        yield from _expire_idle(state, topic_id, key, now_ms)
    for topic_id, subscriber in state.schedule.shared.take(now_ms, NAMED_PER_TICK_MAX):
        yield from _expire_shared(state, topic_id, subscriber, now_ms)
    for topic_id in state.schedule.retention.take(now_ms, EXPIRED_PER_TICK_MAX):
        yield from _trim(state, topic_id, now_ms)
    for topic_id in list(islice(state.schedule.over_quota, NAMED_PER_TICK_MAX)):
        state.schedule.over_quota.discard(topic_id)
        yield from _reduce_to_quota(state, topic_id)
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


def _release_due(state: State, now_ms: int) -> Iterator[events.Event]:
    """Release delayed batches that are due, in the order of their due times."""
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
        expired = _take_expired(topic, now_ms, left)
        left -= len(expired)
        if expired:
            yield events.Expired(topic.id, tuple(expired))
        if topic.expiries:
            state.schedule.expiry.add(topic.expiries[0][0], topic.id)


def _take_expired(topic: Topic, now_ms: int, count_max: int) -> list[int]:
    """Return the first offsets of expired batches."""
    index, heap = topic.index, topic.expiries
    expired: list[int] = []
    while heap and heap[0][0] <= now_ms and len(expired) < count_max:
        _, first_offset = heappop(heap)
        if first_offset >= index.first and index.expires[index.find(first_offset)] != EXPIRED:
            expired.append(first_offset)
    return expired


def _expire_idle(state: State, topic_id: int, key: str, now_ms: int) -> Iterator[events.Event]:
    """Delete a subscription whose owner was idle for too long. Its time starts when the broker starts."""
    owner = _idle_owner(state, topic_id, key)
    if owner is None:
        return
    owner.heard_ms = owner.heard_ms or now_ms
    due_ms = owner.heard_ms + owner.idle_ms
    if due_ms > now_ms:
        state.schedule.idle.add(due_ms, (topic_id, key))
    elif isinstance(owner, PatternSubscription):
        yield events.PatternUnsubscribed(None, owner.pattern, owner.subscriber)
    else:
        topic = state.topics_by_id[topic_id]
        yield events.Unsubscribed(None, topic_id, key, not topic.stays and len(topic.subscriptions) == 1)


def _idle_owner(state: State, topic_id: int, key: str) -> Subscription | PatternSubscription | None:
    if not topic_id:
        subscriber, _, pattern = key.partition(BY_PATTERN)
        return state.patterns.get((pattern, subscriber))
    topic = state.topics_by_id.get(topic_id)
    return topic.subscriptions.get(key) if topic is not None else None


def _expire_shared(state: State, topic_id: int, subscriber: str, now_ms: int) -> Iterator[events.Event]:
    """End leases and remove members whose time is over, and wake waiting takes, which may find redeliveries."""
    topic = state.topics_by_id.get(topic_id)
    subscription = topic.subscriptions.get(subscriber) if topic is not None else None
    if topic is None or subscription is None or (shared := subscription.shared) is None:
        return
    shared.redeliveries.promote(now_ms)
    tokens = tuple(_expired_leases(shared, now_ms, NAMED_PER_TICK_MAX * _TOKENS_PER_NAME))
    if tokens:
        yield events.LeasesExpired(topic_id, subscriber, tokens)
    members = tuple(_idle_members(shared, now_ms, NAMED_PER_TICK_MAX))
    if members:
        yield events.MembersLeft(topic_id, subscriber, members)
    state.schedule.wakeups.add(topic_id)
    due_ms = shared.next_ms()
    if due_ms is not None:
        state.schedule.shared.add(due_ms, (topic_id, subscriber))


def _expired_leases(shared: SharedState, now_ms: int, count_max: int) -> Iterator[int]:
    for token in shared.leases_due.take(now_ms, count_max):
        lease = shared.leases.get(token)
        if lease is not None and lease.until_ms <= now_ms:
            yield token
        elif lease is not None:
            shared.leases_due.add(lease.until_ms, token)


def _idle_members(shared: SharedState, now_ms: int, count_max: int) -> Iterator[str]:
    for name in shared.members_due.take(now_ms, count_max):
        member = shared.members.get(name)
        if member is None:
            continue
        since_ms = now_ms if member.tokens else member.active_ms
        if since_ms + shared.member_idle_ms <= now_ms:
            yield name
        else:
            shared.members_due.add(since_ms + shared.member_idle_ms, name)


def _reduce_to_quota(state: State, topic_id: int) -> Iterator[events.Event]:
    """Delete the oldest messages or the slowest subscription of a topic that exceeds its quota."""
    topic = state.topics_by_id.get(topic_id)
    if topic is None or not topic.is_over_quota:
        # The quota may have changed since the topic was scheduled.
        return
    if topic.overflow == DROP:
        yield events.Dropped(topic.id, _quota_floor(topic))
        if topic.is_over_quota:
            state.schedule.over_quota.add(topic.id)
        return
    slowest = next(entry for entry in topic.subscriptions.values() if entry.acked == topic.low_watermark)
    yield events.SubscriptionExpired(topic.id, slowest.subscriber)


def _quota_floor(topic: Topic) -> int:
    index, excess = topic.index, topic.held_bytes - topic.quota_bytes
    entry = index.head
    stop = min(len(index.ends), entry + TRIMMED_PER_TICK_MAX)
    while excess > 0 and entry < stop:
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
    """Return the offset below which retention no longer keeps messages, as far as one tick goes. With both kinds of
    retention, the stricter one counts."""
    index = topic.index
    floor = topic.trimmed
    entry = index.find(max(floor, index.first))
    above_bytes = topic.above_trim_bytes
    stop = min(len(index.ends), entry + TRIMMED_PER_TICK_MAX)
    while entry < stop:
        too_old = topic.retain_ms and index.times[entry] + topic.retain_ms <= now_ms
        too_much = topic.retain_bytes and above_bytes > topic.retain_bytes
        if not too_old and not too_much:
            break
        above_bytes -= index.sizes[entry]
        floor = index.ends[entry]
        entry += 1
    return floor
