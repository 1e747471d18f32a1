"""What becomes of an operation: an event, a refusal, or not now. Decides; changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncemq.engine import commands as co
from oncemq.engine import events as ev
from oncemq.engine.names import refuse_key, refuse_name
from oncemq.engine.replies import Refusal
from oncemq.engine.situation import Outcome, Situation, refuse_new_topic, unknown_topic
from oncemq.engine.staging import decide_abort, decide_commit, decide_stage
from oncemq.engine.storing import decide_put, decide_settle_alone, decide_transact
from oncemq.engine.subscribing import decide_close, decide_open, decide_seek, decide_subscribe, decide_unsubscribe
from oncemq.engine.topic import Topic
from oncemq.limits import REGISTRY_VALUE_BYTES_MAX


def decide(at: Situation, operation: co.Operation) -> Outcome:
    return _DECIDERS[type(operation)](at, operation)


# Topics.


def _create_topic(at: Situation, op: co.CreateTopic) -> Outcome:
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


def _refuse_settings(op: co.CreateTopic) -> Refusal | None:
    if min(op.retain_ms, op.retain_bytes, op.quota_bytes) < 0:
        return Refusal("MALFORMED", "neither a retention nor a quota is negative")
    if op.overflow not in (co.REFUSE, co.DROP, co.EXPIRE):
        return Refusal("MALFORMED", f"'{op.overflow}' is no policy at the quota: refuse, drop or expire")
    if op.quota_bytes and op.overflow != co.DROP and (op.retain_ms or op.retain_bytes):
        text = "what is retained would fill the quota: a retention goes with the policy 'drop' only"
        return Refusal("UNSUPPORTED", text)
    return None


def _made(
    at: Situation, op: co.CreateTopic, topic_id: int, *, created: bool = False, altered: bool = False
) -> ev.TopicMade:
    return ev.TopicMade(
        at.claim, topic_id, op.name, op.retain_ms, op.retain_bytes, created, op.quota_bytes, op.overflow, altered
    )


def _delete_topic(at: Situation, op: co.DeleteTopic) -> Outcome:
    topic = at.state.topics.get(op.name)
    if topic is None:
        return unknown_topic(op.name)
    return ev.TopicRemoved(at.claim, topic.id)


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
    co.Put: decide_put,
    co.Transact: decide_transact,
    co.Settle: decide_settle_alone,
    co.Void: lambda at, _: ev.Voided(at.claim),
    co.CreateTopic: _create_topic,
    co.DeleteTopic: _delete_topic,
    co.Subscribe: decide_subscribe,
    co.Unsubscribe: decide_unsubscribe,
    co.Open: decide_open,
    co.Close: decide_close,
    co.Seek: decide_seek,
    co.Stage: decide_stage,
    co.Commit: decide_commit,
    co.Abort: decide_abort,
    co.RegistrySet: _registry_set,
    co.RemoveSession: _remove_session,
}
