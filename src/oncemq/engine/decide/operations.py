"""What becomes of an operation: an event, a refusal, or not now. Decides; changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncemq.engine import events
from oncemq.engine.decide.decision_context import Outcome, Situation, refuse_new_topic, unknown_topic
from oncemq.engine.decide.puts import decide_put, decide_settle_alone, decide_transact
from oncemq.engine.decide.stages import decide_abort, decide_commit, decide_stage
from oncemq.engine.decide.subscriptions import (
    decide_close,
    decide_open,
    decide_seek,
    decide_subscribe,
    decide_unsubscribe,
)
from oncemq.engine.state.topic import Topic
from oncemq.protocol import commands
from oncemq.protocol.limits import REGISTRY_VALUE_BYTES_MAX
from oncemq.protocol.names import refuse_key, refuse_name
from oncemq.protocol.replies import Refusal


def decide(at: Situation, operation: commands.Operation) -> Outcome:
    return _DECIDERS[type(operation)](at, operation)


# Topics.


def _create_topic(at: Situation, op: commands.CreateTopic) -> Outcome:
    refusal = _refuse_settings(op)
    if refusal is not None:
        return refusal
    topic = at.state.topics.get(op.name)
    if topic is None:
        return refuse_new_topic(at, op.name) or _made(at, op, at.state.next_topic_id, created=True)
    same = _settings(topic) == (op.retain_ms, op.retain_bytes, op.quota_bytes, op.overflow)
    if topic.stays and not same and not op.alter:
        text = (
            f"topic '{op.name}' exists with retain_ms={topic.retain_ms}, retain_bytes={topic.retain_bytes}, "
            f"quota_bytes={topic.quota_bytes}, overflow='{topic.overflow}'"
        )
        return Refusal("TOPIC_EXISTS", text)
    return _made(at, op, topic.id, altered=topic.stays and not same)


def _settings(topic: Topic) -> tuple[int, int, int, str]:
    return topic.retain_ms, topic.retain_bytes, topic.quota_bytes, topic.overflow


def _refuse_settings(op: commands.CreateTopic) -> Refusal | None:
    if min(op.retain_ms, op.retain_bytes, op.quota_bytes) < 0:
        return Refusal("MALFORMED", "neither a retention nor a quota is negative")
    if op.overflow not in (commands.REFUSE, commands.DROP, commands.EXPIRE):
        return Refusal("MALFORMED", f"'{op.overflow}' is no policy at the quota: refuse, drop or expire")
    if op.quota_bytes and op.overflow != commands.DROP and (op.retain_ms or op.retain_bytes):
        text = "what is retained would fill the quota: a retention goes with the policy 'drop' only"
        return Refusal("UNSUPPORTED", text)
    return None


def _made(
    at: Situation, op: commands.CreateTopic, topic_id: int, *, created: bool = False, altered: bool = False
) -> events.TopicMade:
    return events.TopicMade(
        at.claim, topic_id, op.name, op.retain_ms, op.retain_bytes, created, op.quota_bytes, op.overflow, altered
    )


def _delete_topic(at: Situation, op: commands.DeleteTopic) -> Outcome:
    topic = at.state.topics.get(op.name)
    if topic is None:
        return unknown_topic(op.name)
    return events.TopicRemoved(at.claim, topic.id)


# The rest.


def _registry_set(at: Situation, op: commands.RegistrySet) -> Outcome:
    refusal = refuse_name(op.namespace, "namespace") or refuse_key(op.key)
    if refusal is not None:
        return refusal
    known = at.state.registry.get(op.namespace, {}).get(op.key)
    version = known.version if known is not None else 0
    if op.version >= 0 and op.version != version:
        return Refusal("REGISTRY_CONFLICT", f"entry '{op.key}' has version {version}, not {op.version}")
    if op.value is None:
        return events.RegistryChanged(at.claim, op.namespace, op.key, None, 0)
    if len(op.value) > REGISTRY_VALUE_BYTES_MAX:
        return Refusal("TOO_LARGE", f"a registry value has at most {REGISTRY_VALUE_BYTES_MAX} bytes")
    if known is None and at.state.registry_entries >= at.limits.registry_entries_max:
        return Refusal("LIMIT_REACHED", f"the registry has {at.limits.registry_entries_max} entries, the limit")
    return events.RegistryChanged(at.claim, op.namespace, op.key, op.value, version + 1)


def _remove_session(at: Situation, op: commands.RemoveSession) -> Outcome:
    session = at.state.sessions.get(op.session)
    if session is None:
        return Refusal("SESSION_UNKNOWN", f"there is no session '{op.session}'")
    if isinstance(at.claim, events.Claim) and at.claim.session_id == session.id:
        return Refusal("SESSION_UNKNOWN", "a session can't remove itself")
    return events.SessionRemoved(at.claim, session.id)


_DECIDERS: dict[type, Callable[[Situation, Any], Outcome]] = {
    commands.Put: decide_put,
    commands.Transact: decide_transact,
    commands.Settle: decide_settle_alone,
    commands.Void: lambda at, _: events.Voided(at.claim),
    commands.CreateTopic: _create_topic,
    commands.DeleteTopic: _delete_topic,
    commands.Subscribe: decide_subscribe,
    commands.Unsubscribe: decide_unsubscribe,
    commands.Open: decide_open,
    commands.Close: decide_close,
    commands.Seek: decide_seek,
    commands.Stage: decide_stage,
    commands.Commit: decide_commit,
    commands.Abort: decide_abort,
    commands.RegistrySet: _registry_set,
    commands.RemoveSession: _remove_session,
}
