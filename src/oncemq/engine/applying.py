"""The only way that state changes: one function per kind of event. Nothing here decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from oncemq.engine import events as ev
from oncemq.engine.replies import RegistryEntry, Verdict
from oncemq.engine.session import Session
from oncemq.engine.state import KeyEntry, StagedBatch, StageEntry, State
from oncemq.engine.topic import Topic
from oncemq.engine.verdicts import verdict_of
from oncemq.limits import Limits


def apply(state: State, limits: Limits, time_ms: int, event: ev.Event) -> Verdict | None:
    """Change the state as the event says. Returns the verdict of an event that answers somebody."""
    state.time_ms = time_ms
    _APPLIERS[type(event)](state, limits, time_ms, event)
    claim: ev.AnyClaim | None = getattr(event, "claim", None)
    if claim is None:
        return None
    verdict = verdict_of(time_ms, event)
    if isinstance(claim, ev.Claim):
        session = state.session_to_change(claim.session_id)
        assert session is not None
        session.remember(claim.number, claim.digest, claim.seen_below, verdict, time_ms)
    else:
        entry = KeyEntry(claim.principal, claim.key, claim.digest, verdict, time_ms)
        state.keys[(claim.principal, claim.key)] = entry
    return verdict


# Sessions.


def _session_begun(state: State, limits: Limits, time_ms: int, event: ev.SessionBegun) -> None:
    session = state.session_to_change(event.session_id)
    if session is None:
        session = Session(event.session_id, event.name, event.anonymous)
        if state.capture is not None:
            session.captured = state.capture.generation
        state.sessions[event.name] = state.sessions_by_id[event.session_id] = session
        if event.anonymous:
            state.schedule.sessions.add(time_ms + limits.session_idle_ms, event.session_id)
    session.begin(event.epoch, event.nonce, event.window, time_ms)
    state.next_epoch = event.epoch + 1


def _forget_session(state: State, session_id: int) -> None:
    session = state.session_to_change(session_id)
    if session is not None:
        del state.sessions_by_id[session_id]
        del state.sessions[session.name]
        state.schedule.sessions.forget_others(state.sessions_by_id, len(state.sessions_by_id))


def _session_ended(state: State, _limits: Limits, _time_ms: int, event: ev.SessionEnded | ev.SessionRemoved) -> None:
    _forget_session(state, event.session_id)


# Topics and subscriptions.


def _new_topic(state: State, topic_id: int, name: str, stays: bool, retain_ms: int = 0, retain_bytes: int = 0) -> Topic:
    topic = Topic(topic_id, name, stays, retain_ms, retain_bytes)
    if state.capture is not None:
        topic.captured = state.capture.generation
    state.topics[name] = state.topics_by_id[topic_id] = topic
    state.next_topic_id = topic_id + 1
    return topic


def _topic_of(state: State, topic_id: int, new_name: str, *, stays: bool) -> Topic:
    """The topic of an event that made it (then it has a name) or found it."""
    return _new_topic(state, topic_id, new_name, stays) if new_name else state.topic_to_change(topic_id)


def _topic_made(state: State, _limits: Limits, _time_ms: int, event: ev.TopicMade) -> None:
    if event.created:
        _new_topic(state, event.topic_id, event.name, True, event.retain_ms, event.retain_bytes)
        return
    topic = state.topic_to_change(event.topic_id)
    if not topic.stays:
        topic.stays = True
        topic.retain_ms = event.retain_ms
        topic.retain_bytes = event.retain_bytes
        topic.trimmed = topic.index.first
        topic.above_trim_bytes = topic.stored_bytes
        _watch_retention(state, topic)


def _forget_topic(state: State, topic: Topic) -> None:
    for position, size in topic.index.entries():
        state.count_dead(position, size)
    state.subscriptions -= len(topic.subscriptions)
    del state.topics[topic.name]
    del state.topics_by_id[topic.id]


def _topic_removed(state: State, _limits: Limits, _time_ms: int, event: ev.TopicRemoved) -> None:
    _forget_topic(state, state.topic_to_change(event.topic_id))


def _subscribed(state: State, _limits: Limits, _time_ms: int, event: ev.Subscribed) -> None:
    topic = _topic_of(state, event.topic_id, event.topic_name, stays=False)
    if event.created:
        topic.add_subscription(event.subscriber, event.acked)
        state.subscriptions += 1


def _unsubscribed(state: State, _limits: Limits, _time_ms: int, event: ev.Unsubscribed) -> None:
    topic = state.topic_to_change(event.topic_id)
    topic.remove_subscription(event.subscriber)
    state.subscriptions -= 1
    if event.topic_removed:
        _forget_topic(state, topic)
    else:
        state.collect(topic)


def _owner_changed(state: State, _limits: Limits, _time_ms: int, event: ev.OwnerChanged) -> None:
    subscription = state.topic_to_change(event.topic_id).subscriptions[event.subscriber]
    subscription.epoch = event.epoch
    subscription.held_until_ms = event.held_until_ms
    state.next_epoch = event.epoch + 1


def _owner_left(state: State, _limits: Limits, _time_ms: int, event: ev.OwnerLeft) -> None:
    state.topic_to_change(event.topic_id).subscriptions[event.subscriber].held_until_ms = 0


# Messages.


def _stored(state: State, _limits: Limits, time_ms: int, event: ev.Stored) -> None:
    topic = _topic_of(state, event.topic_id, event.topic_name, stays=True)
    if event.position:
        state.count_live(event.position, event.size)
    _extend(state, topic, time_ms, event.count, (StagedBatch(event.count, event.size, event.position),))


def _extend(state: State, topic: Topic, time_ms: int, count: int, batches: Iterable[StagedBatch]) -> None:
    """Give the next `count` offsets to batches, which lie in the journal already."""
    topic.next_offset += count
    if not topic.keeps:
        topic.needed = topic.next_offset
        topic.index.skip_to(topic.next_offset)
        for batch in batches:
            if batch.position:
                state.count_dead(batch.position, batch.size)
        return
    for batch in batches:
        topic.index.add(batch.count, batch.position, batch.size, 0, time_ms)
        topic.stored_bytes += batch.size
        topic.above_trim_bytes += batch.size
    if not topic.subscriptions:
        topic.needed = topic.next_offset
    if topic.retain_ms or topic.retain_bytes:
        _watch_retention(state, topic)


def _watch_retention(state: State, topic: Topic) -> None:
    if topic.retain_ms and topic.trimmed < topic.index.end:
        oldest_ms = topic.index.times[topic.index.find(max(topic.trimmed, topic.index.first))]
        state.schedule.retention.add(oldest_ms + topic.retain_ms, topic.id)
    if topic.retain_bytes and topic.above_trim_bytes > topic.retain_bytes:
        state.schedule.oversized.add(topic.id)


def _acked(state: State, _limits: Limits, _time_ms: int, event: ev.Acked) -> None:
    topic = state.topic_to_change(event.topic_id)
    if topic.ack(event.subscriber, event.upto):
        state.collect(topic)


def _trimmed(state: State, _limits: Limits, _time_ms: int, event: ev.Trimmed) -> None:
    topic = state.topic_to_change(event.topic_id)
    index = topic.index
    topic.above_trim_bytes -= sum(index.sizes[index.find(topic.trimmed) : index.find(event.floor)])
    topic.trimmed = event.floor
    state.collect(topic)
    if topic.trimmed < topic.next_offset:
        _watch_retention(state, topic)


def _moved(state: State, _limits: Limits, _time_ms: int, event: ev.Moved) -> None:
    if event.first_offset < 0:
        _move_staged(state, event)
    else:
        index = state.topic_to_change(event.topic_id).index
        entry = index.find(event.first_offset)
        assert index.positions[entry] == event.old_position
        index.positions[entry] = event.position
    state.count_dead(event.old_position, event.size)
    state.count_live(event.position, event.size)


def _move_staged(state: State, event: ev.Moved) -> None:
    for stage in state.stages.values():
        if any(batch.position == event.old_position for batch in stage.batches):
            batches = tuple(
                StagedBatch(batch.count, batch.size, event.position)
                if batch.position == event.old_position
                else batch
                for batch in stage.batches
            )
            state.stages[stage.name] = msgspec.structs.replace(stage, batches=batches)
            return


# Stages.


def _staged(state: State, _limits: Limits, _time_ms: int, event: ev.Staged) -> None:
    state.count_live(event.position, event.size)
    batch = StagedBatch(event.count, event.size, event.position)
    known = state.stages.get(event.stage)
    batches = (*known.batches, batch) if known is not None else (batch,)
    state.stages[event.stage] = StageEntry(
        event.stage, event.topic_id, event.expires_ms, event.stage_count, batches
    )
    state.schedule.stages.add(event.expires_ms, event.stage)


def _committed(state: State, _limits: Limits, time_ms: int, event: ev.Committed) -> None:
    if event.before:
        _drop_stages(state, event.stages)
        return
    state.writers[event.writer] = event.batch
    topic = state.topic_to_change(event.topic_id)
    batches = [batch for name in event.stages for batch in state.stages.pop(name).batches]
    state.schedule.stages.forget_others(state.stages, len(state.stages))
    _extend(state, topic, time_ms, event.count, batches)


def _drop_stages(state: State, names: Iterable[str]) -> None:
    for name in names:
        for batch in state.stages.pop(name).batches:
            state.count_dead(batch.position, batch.size)
    state.schedule.stages.forget_others(state.stages, len(state.stages))


def _stages_dropped(
    state: State, _limits: Limits, _time_ms: int, event: ev.StagesDropped | ev.StagesExpired
) -> None:
    _drop_stages(state, event.stages)


# The rest.


def _keys_expired(state: State, _limits: Limits, _time_ms: int, event: ev.KeysExpired) -> None:
    for _ in range(event.count):
        state.keys.popitem(last=False)


def _registry_changed(state: State, _limits: Limits, _time_ms: int, event: ev.RegistryChanged) -> None:
    entries = state.registry.setdefault(event.namespace, {})
    state.registry_entries -= event.key in entries
    if event.value is None:
        entries.pop(event.key, None)
        if not entries:
            del state.registry[event.namespace]
        return
    entries[event.key] = RegistryEntry(event.key, event.value, event.version)
    state.registry_entries += 1


def _nothing(_state: State, _limits: Limits, _time_ms: int, _event: ev.Event) -> None:
    """Only the claim counts."""


_APPLIERS: dict[type, Callable[[State, Limits, int, Any], None]] = {
    ev.SessionBegun: _session_begun,
    ev.SessionEnded: _session_ended,
    ev.SessionRemoved: _session_ended,
    ev.Declined: _nothing,
    ev.Voided: _nothing,
    ev.TopicMade: _topic_made,
    ev.TopicRemoved: _topic_removed,
    ev.Subscribed: _subscribed,
    ev.Unsubscribed: _unsubscribed,
    ev.OwnerChanged: _owner_changed,
    ev.OwnerLeft: _owner_left,
    ev.Stored: _stored,
    ev.Acked: _acked,
    ev.Trimmed: _trimmed,
    ev.Staged: _staged,
    ev.Committed: _committed,
    ev.StagesDropped: _stages_dropped,
    ev.StagesExpired: _stages_dropped,
    ev.KeysExpired: _keys_expired,
    ev.RegistryChanged: _registry_changed,
    ev.Moved: _moved,
}
