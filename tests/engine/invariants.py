"""Checks of derived state against its source, and that events and snapshots restore the same state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec

from oncemq.engine.engine import Engine
from oncemq.engine.events import Event
from oncemq.engine.state.batch_index import EXPIRED, BatchIndex
from oncemq.engine.state.owners import STAGE, TOPIC
from oncemq.engine.state.pattern_subscription import PatternSubscription
from oncemq.engine.state.shared_subscription import SharedState
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.journal.contract import record_bytes
from oncemq.protocol.commands import ENTRY, SESSION, SUBSCRIPTION, WRITER
from oncemq.protocol.limits import Limits
from tests.engine.world import EXTENT_BYTES, World, image_of

_encode = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(Event).decode


def check(world: World) -> None:
    """Check the invariants of the state, and that its events and a snapshot restore it."""
    replayed = world.replayed()
    assert image_of(replayed) == world.image()
    restored = engine_from(world.engine, world.limits)
    for engine in (world.engine, replayed, restored):
        check_invariants(engine, world.now_ms)
    assert comparable(restored) == comparable(world.engine)


def through_journal(event: Event) -> Event:
    """Return an event as recovery reads it."""
    found: Event = _decode_event(_encode(event))
    return found


def event_bytes(event: Event) -> int:
    return len(_encode(event))


def engine_from(engine: Engine, limits: Limits) -> Engine:
    """Return another engine, restored from a snapshot."""
    replica = Engine("broker", 1, EXTENT_BYTES, limits)
    capture = engine.capture()
    replica.restore(list(iter(capture.chunk, None)))
    return replica


def comparable(engine: Engine) -> list[str]:
    """Return the content of a snapshot, independent of the order of topics and sessions."""
    return sorted(map(repr, image_of(engine)))


def without_verdicts(world: World) -> list[object]:
    """Return the state that a refusal must not change: everything except verdicts and the last recorded time."""
    images = [image for image in world.image() if isinstance(image, list)]
    return [image[:3] if image[0] == "head" else image for image in images if image[0] not in ("session", "key")]


def check_invariants(engine: Engine, now_ms: int) -> None:
    state = engine.state
    assert {(topic.id, topic.name): topic for topic in state.topics_by_id.values()} == {
        (topic.id, name): topic for name, topic in state.topics.items()
    }
    for topic in state.topics_by_id.values():
        _check_topic(state, topic)
    assert state.subscriptions == sum(len(topic.subscriptions) for topic in state.topics.values())
    assert state.live == _live(state)
    _check_hidden(state)
    _check_owners(state)
    _check_patterns(state)
    _check_times(engine, now_ms)


# Topics.


def _check_topic(state: State, topic: Topic) -> None:
    positions = [subscription.acked for subscription in topic.subscriptions.values()]
    assert topic.low_watermark == min(positions, default=topic.next_offset)
    assert max(positions, default=0) <= topic.next_offset
    assert topic.delayed_bytes == sum(batch.size for batch in topic.delayed.values())
    assert topic.attached == {key: each for key, each in topic.subscriptions.items() if each.pattern is not None}
    _check_index(topic)
    shared = [each.shared for each in topic.subscriptions.values() if each.shared is not None]
    assert topic.key_orders == sum(each.policy.key_order for each in shared)
    for subscription in topic.subscriptions.values():
        if subscription.shared is not None:
            assert subscription.acked == subscription.shared.floor()
            _check_shared(topic, subscription.shared)


def _check_index(topic: Topic) -> None:
    index = topic.index
    ends, expires = list(index.ends[index.head :]), list(index.expires[index.head :])
    assert index.end == topic.next_offset
    assert ends == sorted(set(ends))
    assert list(index.times) == sorted(index.times)
    assert index.expiring == sum(1 for expires_ms in expires if expires_ms)
    assert topic.stored_bytes == sum(index.sizes[index.head :])
    firsts = [first for _, first in index.first_offsets()]
    assert set(index.keys) <= set(firsts)
    waiting = {(at, first) for at, first in zip(expires, firsts, strict=True) if at not in (0, EXPIRED)}
    assert waiting <= set(topic.expiries)
    assert not ends or ends[0] > topic.reclaim_floor(), "something could be collected"
    assert topic.stores_messages or not ends
    if topic.retained:
        above = [size for size, first in zip(index.sizes[index.head :], firsts, strict=True) if first >= topic.trimmed]
        assert topic.above_trim_bytes == sum(above)


def _check_shared(topic: Topic, shared: SharedState) -> None:
    """Check that every offset between the floor and `next_offset` is in exactly one state."""
    places: Counter[int] = Counter()
    for lease in shared.leases.values():
        places.update(offset for first, end, _ in lease.spans for offset in range(first, end))
    assert shared.leased == sum(places.values())
    for first, (end, _, _) in shared.redeliveries.spans.items():
        places.update(range(first, end))
    for first, end in shared.acked_ranges.ranges():
        places.update(range(first, end))
    for behind in shared.keys.waiting.values():
        places.update(behind)
    assert places == Counter(range(shared.floor(), shared.next_offset))
    assert shared.next_offset <= topic.next_offset


# Complete state.


def _live(state: State) -> dict[int, int]:
    live: Counter[int] = Counter()
    records = [entry for topic in state.topics.values() for entry in topic.index.entries()]
    records += [(each.position, each.size) for topic in state.topics.values() for each in topic.delayed.values()]
    records += [(each.position, each.size) for stage in state.stages.values() for each in stage.batches]
    for position, size in records:
        live[position // state.extent_bytes] += record_bytes(size)
    return dict(live)


def _check_hidden(state: State) -> None:
    delayed = {batch.delay_id: topic for topic in state.topics.values() for batch in topic.delayed.values()}
    assert state.delayed == len(delayed)
    assert state.schedule.delays == {delay_id: topic.id for delay_id, topic in delayed.items()}
    hidden: dict[int, int | str] = {topic.delayed[key].position: key for key, topic in delayed.items()}
    hidden |= {batch.position: stage.name for stage in state.stages.values() for batch in stage.batches}
    assert state.unpublished == hidden


def _check_patterns(state: State) -> None:
    for pattern in state.patterns.values():
        matching = {topic.id: topic for topic in state.topics.values() if pattern.matches(topic.name)}
        assert set(pattern.topics) == set(matching)
        for topic_id, subscription in pattern.topics.items():
            assert matching[topic_id].subscriptions[pattern.key] is subscription
            assert subscription.pattern is pattern
        behind = {key for key, topic in matching.items() if _has_more(topic.index, pattern.topics[key].acked)}
        assert set(pattern.pending) == behind


def _check_owners(state: State) -> None:
    """What has an owner exists."""
    counts: Counter[tuple[str, str]] = Counter()
    for kind, of, name, owner in state.owners:
        counts[kind, owner] += 1
        known: dict[str, Collection[object]] = {
            TOPIC: state.topics,
            SESSION: state.sessions,
            STAGE: state.stages,
            WRITER: state.writers,
            ENTRY: state.registry.get(of, {}),
            SUBSCRIPTION: state.topics[of].subscriptions if of in state.topics else (),
        }
        assert name in known[kind] or (kind == SUBSCRIPTION and (of, name) in state.patterns), (kind, of, name)
    assert all(state.owners.count(*key) == count for key, count in counts.items())
    for owner in {owner for _, owner in counts}:
        assert len(state.owners.topics_of(owner)) == counts[TOPIC, owner]


def _has_more(index: BatchIndex, acked: int) -> bool:
    return any(
        end > acked and expires_ms != EXPIRED
        for end, expires_ms in zip(index.ends[index.head :], index.expires[index.head :], strict=True)
    )


# Time.


def _check_times(engine: Engine, now_ms: int) -> None:
    """Check that the next tick is not later than the next due entry."""
    due = _due_times(engine.state, now_ms)
    if due:
        next_ms = engine.next_tick_ms()
        assert next_ms is not None
        assert next_ms <= min(due)


def _due_times(state: State, now_ms: int) -> list[int]:
    times = [stage.expires_ms for stage in state.stages.values()]
    times += [_idle_until(pattern, now_ms) for pattern in state.patterns.values() if pattern.idle_ms]
    for topic in state.topics.values():
        times += [batch.due_ms for batch in topic.delayed.values()]
        times += [at for at in topic.index.expires[topic.index.head :] if at not in (0, EXPIRED)]
        if topic.is_over_quota or (topic.retain_bytes and topic.above_trim_bytes > topic.retain_bytes):
            times.append(0)
        if topic.retain_ms and topic.trimmed < topic.next_offset:
            oldest = topic.index.find(max(topic.trimmed, topic.index.first))
            times.append(topic.index.times[oldest] + topic.retain_ms)
        for subscription in topic.subscriptions.values():
            if subscription.idle_ms:
                times.append(_idle_until(subscription, now_ms))
            if subscription.shared is not None:
                times += [lease.until_ms for lease in subscription.shared.leases.values()]
                times += [at for _, _, at in subscription.shared.redeliveries.spans.values() if at > now_ms]
    return times


def _idle_until(owner: Subscription | PatternSubscription, now_ms: int) -> int:
    """Return when a subscription is checked at the latest. The time of an owner that was never heard starts soon."""
    return owner.heard_ms + owner.idle_ms if owner.heard_ms else now_ms
