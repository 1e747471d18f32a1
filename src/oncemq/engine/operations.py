"""What becomes of an operation: an event, a refusal, or not now. Decides; changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncemq.engine import commands as co
from oncemq.engine import events as ev
from oncemq.engine.names import refuse_key, refuse_name, refuse_topic_name
from oncemq.engine.replies import NotNow, Refusal
from oncemq.engine.state import State
from oncemq.engine.topic import Subscription, Topic
from oncemq.journal.contract import Place, record_bytes
from oncemq.limits import (
    BATCH_COUNT_MAX,
    HOLD_MS_MAX,
    REGISTRY_VALUE_BYTES_MAX,
    STAGES_PER_COMMIT_MAX,
    Limits,
)

Outcome = ev.Event | Refusal | NotNow


class Situation:
    """What a decision is made from."""

    __slots__ = ("claim", "limits", "now_ms", "place", "state")

    def __init__(self, state: State, limits: Limits, now_ms: int, place: Place, claim: ev.AnyClaim) -> None:
        self.state = state
        self.limits = limits
        self.now_ms = now_ms
        self.place = place
        self.claim = claim


def decide(at: Situation, operation: co.Operation) -> Outcome:
    return _DECIDERS[type(operation)](at, operation)


def _unknown_topic(name: str) -> Refusal:
    return refuse_topic_name(name) or Refusal("TOPIC_UNKNOWN", f"there is no topic '{name}'")


def _refuse_new_topic(at: Situation, name: str) -> Refusal | None:
    if len(at.state.topics) >= at.limits.topics_max:
        return Refusal("LIMIT_REACHED", f"there are {at.limits.topics_max} topics, which is the limit")
    return refuse_topic_name(name)


# Topics.


def _create_topic(at: Situation, op: co.CreateTopic) -> Outcome:
    if op.retain_ms < 0 or op.retain_bytes < 0:
        return Refusal("MALFORMED", "a retention is not negative")
    topic = at.state.topics.get(op.name)
    if topic is None:
        refusal = _refuse_new_topic(at, op.name)
        topic_id = at.state.next_topic_id
        made = ev.TopicMade(at.claim, topic_id, op.name, op.retain_ms, op.retain_bytes, True)
        return refusal or made
    if topic.stays and (topic.retain_ms, topic.retain_bytes) != (op.retain_ms, op.retain_bytes):
        text = f"topic '{op.name}' exists with retain_ms={topic.retain_ms}, retain_bytes={topic.retain_bytes}"
        return Refusal("TOPIC_EXISTS", text)
    return ev.TopicMade(at.claim, topic.id, op.name, op.retain_ms, op.retain_bytes, False)


def _delete_topic(at: Situation, op: co.DeleteTopic) -> Outcome:
    topic = at.state.topics.get(op.name)
    if topic is None:
        return _unknown_topic(op.name)
    return ev.TopicRemoved(at.claim, topic.id)


# Subscriptions.


def _subscribe(at: Situation, op: co.Subscribe) -> Outcome:
    topic = at.state.topics.get(op.topic)
    if topic is not None and (known := topic.subscriptions.get(op.subscriber)):
        return ev.Subscribed(at.claim, topic.id, op.subscriber, known.acked, False)
    refusal = refuse_name(op.subscriber, "subscriber's name")
    if refusal is None and at.state.subscriptions >= at.limits.subscriptions_max:
        limit = at.limits.subscriptions_max
        refusal = Refusal("LIMIT_REACHED", f"there are {limit} subscriptions, which is the limit")
    if refusal is not None:
        return refusal
    if topic is None:
        return _subscribe_new_topic(at, op)
    acked = _start(topic, op.start)
    if isinstance(acked, Refusal):
        return acked
    return ev.Subscribed(at.claim, topic.id, op.subscriber, acked, True)


def _subscribe_new_topic(at: Situation, op: co.Subscribe) -> Outcome:
    if op.start > 0:
        return Refusal("OFFSET_OUT_OF_RANGE", f"topic '{op.topic}' does not exist yet, and starts at 0")
    refusal = _refuse_new_topic(at, op.topic)
    return refusal or ev.Subscribed(at.claim, at.state.next_topic_id, op.subscriber, 0, True, op.topic)


def _start(topic: Topic, start: int) -> int | Refusal:
    """Where a new subscription, or a read, begins."""
    if start == co.START_NEW:
        return topic.next_offset
    if start == co.START_EARLIEST:
        return topic.index.first
    return refuse_offset(topic, start) or start


def refuse_offset(topic: Topic, offset: int) -> Refusal | None:
    """An offset that is neither stored nor the next one."""
    if offset > topic.next_offset:
        return Refusal("OFFSET_OUT_OF_RANGE", f"offset {offset}; topic '{topic.name}' ends at {topic.next_offset}")
    if offset < topic.index.first:
        text = f"offset {offset}; topic '{topic.name}' is stored from {topic.index.first} on"
        return Refusal("RANGE_GONE", text)
    return None


def _unsubscribe(at: Situation, op: co.Unsubscribe) -> Outcome:
    topic = at.state.topics.get(op.topic)
    if topic is None:
        return _unknown_topic(op.topic)
    if op.subscriber not in topic.subscriptions:
        return _not_subscribed(topic, op.subscriber)
    removed = not topic.stays and len(topic.subscriptions) == 1
    return ev.Unsubscribed(at.claim, topic.id, op.subscriber, removed)


def _not_subscribed(topic: Topic, subscriber: str) -> Refusal:
    return Refusal("NOT_SUBSCRIBED", f"'{subscriber}' is not subscribed to '{topic.name}'")


def _open(at: Situation, op: co.Open) -> Outcome:
    if not 0 <= op.hold_ms <= HOLD_MS_MAX:
        return Refusal("MALFORMED", f"a hold lasts 0 to {HOLD_MS_MAX} ms")
    topic = at.state.topics.get(op.topic)
    if topic is None:
        return _unknown_topic(op.topic)
    subscription = topic.subscriptions.get(op.subscriber)
    if subscription is None:
        return _not_subscribed(topic, op.subscriber)
    if op.hold_ms and subscription.held_until_ms > at.now_ms:
        return NotNow("BUSY", f"another client holds '{op.subscriber}' on '{op.topic}' for a moment")
    held_until_ms = at.now_ms + op.hold_ms if op.hold_ms > 0 else 0
    return ev.OwnerChanged(
        at.claim, topic.id, op.subscriber, at.state.next_epoch, subscription.acked, held_until_ms
    )


def owned(state: State, topic_id: int, subscriber: str, epoch: int) -> tuple[Topic, Subscription] | Refusal:
    """A subscription, if the caller is its owner."""
    topic = state.topics_by_id.get(topic_id)
    if topic is None:
        return Refusal("TOPIC_GONE", "the topic was deleted")
    subscription = topic.subscriptions.get(subscriber)
    if subscription is None:
        return _not_subscribed(topic, subscriber)
    if subscription.epoch != epoch:
        return Refusal("FENCED", f"another client took over '{subscriber}' on '{topic.name}'")
    return topic, subscription


def _close(at: Situation, op: co.Close) -> Outcome:
    found = owned(at.state, op.topic_id, op.subscriber, op.epoch)
    if isinstance(found, Refusal):
        return found
    return ev.OwnerLeft(at.claim, op.topic_id, op.subscriber)


# Messages.


def _refuse_envelope(at: Situation, envelope: co.Envelope) -> Refusal | None:
    if not 1 <= envelope.count <= BATCH_COUNT_MAX:
        return Refusal("MALFORMED", f"a batch has 1 to {BATCH_COUNT_MAX} messages")
    if envelope.size > at.limits.batch_bytes_max:
        return Refusal("TOO_LARGE", f"{envelope.size} bytes in a batch; the limit is {at.limits.batch_bytes_max}")
    if envelope.ttl_ms or envelope.due_ms or envelope.key_hashes:
        return Refusal("UNSUPPORTED", "time to live, due time and order per key are not known to this broker")
    return None


def _no_room(at: Situation, size: int) -> NotNow | None:
    if record_bytes(size) > at.place.writable_bytes:
        return NotNow("DISK_FULL", "the disk is full; acknowledgements are still taken")
    return None


def _put(at: Situation, op: co.Put) -> Outcome:
    envelope = op.envelope
    refusal = _refuse_envelope(at, envelope)
    if refusal is not None:
        return refusal
    topic = at.state.topics.get(op.topic)
    if topic is None:
        if not op.create:
            return _unknown_topic(op.topic)
        refusal = _refuse_new_topic(at, op.topic)
        return refusal or ev.Stored(at.claim, at.state.next_topic_id, 0, envelope.count, 0, 0, 0, op.topic)
    subscriptions = len(topic.subscriptions)
    if not topic.keeps:
        return ev.Stored(at.claim, topic.id, topic.next_offset, envelope.count, 0, 0, subscriptions)
    return _no_room(at, envelope.size) or ev.Stored(
        at.claim,
        topic.id,
        topic.next_offset,
        envelope.count,
        envelope.size,
        at.place.position,
        subscriptions,
    )


# Stages.


def _stage(at: Situation, op: co.Stage) -> Outcome:
    refusal = _refuse_envelope(at, op.envelope) or refuse_key(op.stage) or refuse_key(op.writer)
    if refusal is not None:
        return refusal
    topic = at.state.topics.get(op.topic)
    if topic is None:
        return _unknown_topic(op.topic)
    if at.state.writers.get(op.writer, -1) >= op.batch:
        return Refusal("STAGE_COMMITTED", f"'{op.writer}' has committed batch {op.batch} before")
    stage = at.state.stages.get(op.stage)
    if stage is None and len(at.state.stages) >= at.limits.stages_max:
        return Refusal("LIMIT_REACHED", f"there are {at.limits.stages_max} stages, which is the limit")
    if stage is not None and stage.topic_id != topic.id:
        return Refusal("STAGE_MISMATCH", f"stage '{op.stage}' belongs to another topic")
    return _no_room(at, op.envelope.size) or ev.Staged(
        at.claim,
        op.stage,
        topic.id,
        op.envelope.count,
        op.envelope.size,
        at.place.position,
        at.now_ms + at.limits.stage_ms,
        op.envelope.count + (stage.count if stage is not None else 0),
    )


def _commit(at: Situation, op: co.Commit) -> Outcome:
    refusal = refuse_key(op.writer)
    if refusal is not None:
        return refusal
    if op.batch < 0 or len(op.stages) > STAGES_PER_COMMIT_MAX:
        return Refusal("MALFORMED", f"a commit has a batch from 0 on, and at most {STAGES_PER_COMMIT_MAX} stages")
    names = tuple(name for name, _ in op.stages)
    if len(set(names)) != len(names):
        return Refusal("STAGE_MISMATCH", "a stage is named twice")
    topic = at.state.topics.get(op.topic)
    if topic is None:
        return _unknown_topic(op.topic)
    if at.state.writers.get(op.writer, -1) >= op.batch:
        present = tuple(name for name in names if name in at.state.stages)
        return ev.Committed(at.claim, op.writer, op.batch, topic.id, -1, 0, 0, present, True)
    if op.writer not in at.state.writers and len(at.state.writers) >= at.limits.writers_max:
        return Refusal("LIMIT_REACHED", f"there are {at.limits.writers_max} writers, which is the limit")
    refusal = _refuse_stages(at, topic, op)
    if refusal is not None:
        return refusal
    count = sum(count for _, count in op.stages)
    subscriptions = len(topic.subscriptions)
    return ev.Committed(
        at.claim, op.writer, op.batch, topic.id, topic.next_offset, count, subscriptions, names, False
    )


def _refuse_stages(at: Situation, topic: Topic, op: co.Commit) -> Refusal | None:
    for name, count in op.stages:
        stage = at.state.stages.get(name)
        if stage is None:
            return Refusal("STAGE_UNKNOWN", f"there is no stage '{name}': it expired or was aborted")
        if stage.topic_id != topic.id:
            return Refusal("TOPIC_GONE", f"stage '{name}' was made for another topic")
        if stage.count != count:
            return Refusal("STAGE_MISMATCH", f"stage '{name}' holds {stage.count} messages, not {count}")
    return None


def _abort(at: Situation, op: co.Abort) -> Outcome:
    if len(op.stages) > STAGES_PER_COMMIT_MAX:
        return Refusal("MALFORMED", f"an abort has at most {STAGES_PER_COMMIT_MAX} stages")
    present = tuple(name for name in dict.fromkeys(op.stages) if name in at.state.stages)
    return ev.StagesDropped(at.claim, present) if present else ev.Voided(at.claim)


# The rest.


def _registry_set(at: Situation, op: co.RegistrySet) -> Outcome:
    refusal = refuse_name(op.namespace, "namespace") or refuse_key(op.key)
    if refusal is not None:
        return refusal
    known = at.state.registry.get(op.namespace, {}).get(op.key)
    version = known.version if known is not None else 0
    if op.version >= 0 and op.version != version:
        return Refusal("REGISTRY_CONFLICT", f"entry '{op.key}' has version {version}, not {op.version}")
    if op.value is None:
        return ev.RegistryChanged(at.claim, op.namespace, op.key, None, 0)
    if len(op.value) > REGISTRY_VALUE_BYTES_MAX:
        return Refusal("TOO_LARGE", f"a registry value has at most {REGISTRY_VALUE_BYTES_MAX} bytes")
    if known is None and at.state.registry_entries >= at.limits.registry_entries_max:
        return Refusal("LIMIT_REACHED", f"the registry has {at.limits.registry_entries_max} entries, the limit")
    return ev.RegistryChanged(at.claim, op.namespace, op.key, op.value, version + 1)


def _remove_session(at: Situation, op: co.RemoveSession) -> Outcome:
    session = at.state.sessions.get(op.session)
    if session is None:
        return Refusal("SESSION_UNKNOWN", f"there is no session '{op.session}'")
    if isinstance(at.claim, ev.Claim) and at.claim.session_id == session.id:
        return Refusal("SESSION_UNKNOWN", "a session can't remove itself")
    return ev.SessionRemoved(at.claim, session.id)


_DECIDERS: dict[type, Callable[[Situation, Any], Outcome]] = {
    co.Put: _put,
    co.Void: lambda at, _: ev.Voided(at.claim),
    co.CreateTopic: _create_topic,
    co.DeleteTopic: _delete_topic,
    co.Subscribe: _subscribe,
    co.Unsubscribe: _unsubscribe,
    co.Open: _open,
    co.Close: _close,
    co.Stage: _stage,
    co.Commit: _commit,
    co.Abort: _abort,
    co.RegistrySet: _registry_set,
    co.RemoveSession: _remove_session,
}
