"""Applies events of messages: stored, delayed, staged, acked, expired, dropped and moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from oncemq.engine import events
from oncemq.engine.apply.topics import find_or_create_topic
from oncemq.engine.state.batch_index import EXPIRED
from oncemq.engine.state.expiry import schedule_expiry, schedule_quota, schedule_retention
from oncemq.engine.state.owners import STAGE
from oncemq.engine.state.state import StagedBatch, StageEntry, State, WriterEntry
from oncemq.engine.state.topic import DelayedBatch, Topic
from oncemq.protocol.limits import Limits


def _stored(state: State, _limits: Limits, time_ms: int, event: events.Stored) -> None:
    topic = find_or_create_topic(state, event.topic_id, event.topic_name, stays=True)
    if event.position:
        state.count_live(event.position, event.size)
    ttl_ms = event.expires_ms - time_ms if event.expires_ms else 0
    batch = StagedBatch(event.count, event.size, event.position, ttl_ms, event.key_hashes)
    _publish_batches(state, topic, time_ms, event.count, (batch,))


def _delayed(state: State, _limits: Limits, _time_ms: int, event: events.Delayed) -> None:
    topic = find_or_create_topic(state, event.topic_id, event.topic_name, stays=True)
    state.count_live(event.position, event.size)
    topic.delayed[event.delay_id] = DelayedBatch(
        event.delay_id, event.count, event.size, event.position, event.due_ms, event.ttl_ms, event.key_hashes
    )
    topic.delayed_bytes += event.size
    topic.delayed_count += event.count
    state.next_epoch = event.delay_id + 1
    state.delayed += 1
    state.unpublished[event.position] = event.delay_id
    state.schedule.delays[event.delay_id] = topic.id
    state.schedule.due.add(event.due_ms, event.delay_id)
    schedule_quota(state, topic)


def _released(state: State, _limits: Limits, time_ms: int, event: events.Released) -> None:
    topic = state.topic_to_change(event.topic_id)
    batch = topic.delayed.pop(event.delay_id)
    topic.delayed_bytes -= batch.size
    topic.delayed_count -= batch.count
    state.delayed -= 1
    del state.unpublished[batch.position]
    del state.schedule.delays[event.delay_id]
    state.schedule.due.discard(event.delay_id)
    released = StagedBatch(batch.count, batch.size, batch.position, batch.ttl_ms, batch.key_hashes)
    _publish_batches(state, topic, time_ms, batch.count, (released,))


def _publish_batches(state: State, topic: Topic, time_ms: int, count: int, batches: Iterable[StagedBatch]) -> None:
    """Give the next `count` offsets to batches, which are already in the journal."""
    topic.next_offset += count
    if not topic.stores_messages:
        topic.low_watermark = topic.next_offset
        topic.index.skip_to(topic.next_offset)
        for batch in batches:
            if batch.position:
                state.count_dead(batch.position, batch.size)
        return
    for batch in batches:
        expires_ms = time_ms + batch.ttl_ms if batch.ttl_ms else 0
        key_hashes = batch.key_hashes if topic.key_orders else b""
        topic.index.add(batch.count, batch.position, batch.size, 0, time_ms, expires_ms, key_hashes)
        topic.stored_bytes += batch.size
        topic.above_trim_bytes += batch.size
        if expires_ms:
            schedule_expiry(state, topic, expires_ms, topic.index.end - batch.count)
    if not topic.subscriptions:
        topic.low_watermark = topic.next_offset
    if topic.retain_ms or topic.retain_bytes:
        schedule_retention(state, topic)
    if topic.quota_bytes:
        schedule_quota(state, topic)
    for subscription in topic.attached.values():
        assert subscription.pattern is not None
        subscription.pattern.on_put(topic.id)


def _acked(state: State, _limits: Limits, _time_ms: int, event: events.Acked) -> None:
    _ack(state, event.topic_id, event.subscriber, event.upto)


def _acked_many(state: State, _limits: Limits, _time_ms: int, event: events.AckedMany) -> None:
    for topic_id, subscriber, upto in event.acks:
        _ack(state, topic_id, subscriber, upto)


def _ack(state: State, topic_id: int, subscriber: str, upto: int) -> None:
    topic = state.topic_to_change(topic_id)
    if topic.ack(subscriber, upto):
        state.reclaim(topic)


def _expired(state: State, _limits: Limits, _time_ms: int, event: events.Expired) -> None:
    topic = state.topic_to_change(event.topic_id)
    for first_offset in event.first_offsets:
        topic.index.expires[topic.index.find(first_offset)] = EXPIRED
    state.reclaim(topic)
    for subscription in topic.attached.values():
        assert subscription.pattern is not None
        subscription.pattern.refresh(topic, subscription)


def _dropped(state: State, _limits: Limits, _time_ms: int, event: events.Dropped) -> None:
    topic = state.topic_to_change(event.topic_id)
    if topic.low_watermark < event.floor:
        for subscription in topic.subscriptions.values():
            if subscription.acked < event.floor:
                topic.drop_needed(subscription, event.floor)
        topic.update_low_watermark()
    _trim(state, topic, event.floor)


def _trimmed(state: State, _limits: Limits, _time_ms: int, event: events.Trimmed) -> None:
    _trim(state, state.topic_to_change(event.topic_id), event.floor)


def _trim(state: State, topic: Topic, floor: int) -> None:
    index = topic.index
    if floor > topic.trimmed:
        topic.above_trim_bytes -= sum(index.sizes[index.find(topic.trimmed) : index.find(floor)])
        topic.trimmed = floor
    state.reclaim(topic)
    if topic.trimmed < topic.next_offset:
        schedule_retention(state, topic)


def _moved(state: State, _limits: Limits, _time_ms: int, event: events.Moved) -> None:
    if event.first_offset < 0:
        _move_unpublished(state, event)
    else:
        index = state.topic_to_change(event.topic_id).index
        entry = index.find(event.first_offset)
        assert index.positions[entry] == event.old_position
        index.positions[entry] = event.position
    state.count_dead(event.old_position, event.size)
    state.count_live(event.position, event.size)


def _move_unpublished(state: State, event: events.Moved) -> None:
    """Move a delayed or staged batch, which has no offset yet."""
    name = state.unpublished[event.position] = state.unpublished.pop(event.old_position)
    if isinstance(name, int):
        delayed = state.topic_to_change(event.topic_id).delayed
        delayed[name] = msgspec.structs.replace(delayed[name], position=event.position)
        return
    stage = state.stages[name]
    batches = tuple(
        msgspec.structs.replace(batch, position=event.position) if batch.position == event.old_position else batch
        for batch in stage.batches
    )
    state.stages[name] = msgspec.structs.replace(stage, batches=batches)


def _staged(state: State, _limits: Limits, _time_ms: int, event: events.Staged) -> None:
    state.count_live(event.position, event.size)
    state.unpublished[event.position] = event.stage
    batch = StagedBatch(event.count, event.size, event.position, event.ttl_ms, event.key_hashes)
    known = state.stages.get(event.stage)
    batches = (*known.batches, batch) if known is not None else (batch,)
    state.stages[event.stage] = StageEntry(event.stage, event.topic_id, event.expires_ms, event.stage_count, batches)
    state.schedule.stages.add(event.expires_ms, event.stage)


def _committed(state: State, _limits: Limits, time_ms: int, event: events.Committed) -> None:
    if event.before:
        _delete_stages(state, event.stages)
        return
    if event.writer:
        entry = state.writers.get(event.writer, WriterEntry(-1))
        state.writers[event.writer] = entry.after(event.batch, event.content)
    if event.topic_id:
        _publish(state, time_ms, event)
    for part in event.parts:
        _publish(state, time_ms, part)


def _publish(state: State, time_ms: int, part: events.Committed | events.CommittedPart) -> None:
    topic = state.topic_to_change(part.topic_id)
    batches = _remove_stages(state, part.stages)
    if batches:
        _publish_batches(state, topic, time_ms, part.count, batches)


def _delete_stages(state: State, names: Iterable[str]) -> None:
    for batch in _remove_stages(state, names):
        state.count_dead(batch.position, batch.size)


def _remove_stages(state: State, names: Iterable[str]) -> list[StagedBatch]:
    batches: list[StagedBatch] = []
    for name in names:
        batches += state.stages.pop(name).batches
        state.schedule.stages.discard(name)
        state.owners.forget(STAGE, "", name)
    for batch in batches:
        del state.unpublished[batch.position]
    return batches


def _stages_deleted(
    state: State, _limits: Limits, _time_ms: int, event: events.StagesDropped | events.StagesExpired
) -> None:
    _delete_stages(state, event.stages)


APPLIERS: dict[type, Callable[[State, Limits, int, Any], None]] = {
    events.Stored: _stored,
    events.Delayed: _delayed,
    events.Released: _released,
    events.Acked: _acked,
    events.AckedMany: _acked_many,
    events.Expired: _expired,
    events.Dropped: _dropped,
    events.Trimmed: _trimmed,
    events.Moved: _moved,
    events.Staged: _staged,
    events.Committed: _committed,
    events.StagesDropped: _stages_deleted,
    events.StagesExpired: _stages_deleted,
}
