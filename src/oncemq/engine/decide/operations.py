"""Decides an operation. The outcome is an event, a refusal, or NotNow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncemq.engine import events
from oncemq.engine.decide.decision_context import (
    DecisionContext,
    Outcome,
    limit_reached,
    refuse_new_topic,
    refuse_unknown_topic,
)
from oncemq.engine.decide.keys import decide_remove_keys
from oncemq.engine.decide.owners import decide_assign
from oncemq.engine.decide.puts import decide_put
from oncemq.engine.decide.schemas import decide_put_schema
from oncemq.engine.decide.stages import decide_abort, decide_commit, decide_stage
from oncemq.engine.decide.subscriptions.subscribe import (
    decide_close,
    decide_open,
    decide_seek,
    decide_subscribe,
    decide_unsubscribe,
)
from oncemq.engine.decide.transactions import decide_single_settle, decide_transact
from oncemq.protocol import commands
from oncemq.protocol.limits import REGISTRY_VALUE_BYTES_MAX
from oncemq.protocol.names import refuse_key, refuse_name
from oncemq.protocol.replies import Refusal


def decide(context: DecisionContext, operation: commands.Operation) -> Outcome:
    return _DECIDERS[type(operation)](context, operation)


# Topics.


def _create_topic(context: DecisionContext, operation: commands.CreateTopic) -> Outcome:
    refusal = _refuse_settings(operation)
    if refusal is not None:
        return refusal
    topic = context.state.topics.get(operation.name)
    if topic is None:
        return refuse_new_topic(context, operation.name) or _created(
            context, operation, context.state.next_topic_id, created=True
        )
    settings = (topic.retain_ms, topic.retain_bytes, topic.quota_bytes, topic.overflow)
    same = settings == (operation.retain_ms, operation.retain_bytes, operation.quota_bytes, operation.overflow)
    if topic.stays and not same and not operation.alter:
        text = (
            f"topic '{operation.name}' already exists with retain_ms={topic.retain_ms}, "
            f"retain_bytes={topic.retain_bytes}, quota_bytes={topic.quota_bytes}, overflow='{topic.overflow}'"
        )
        return Refusal("TOPIC_EXISTS", text)
    return _created(context, operation, topic.id, altered=topic.stays and not same)


def _refuse_settings(operation: commands.CreateTopic) -> Refusal | None:
    if min(operation.retain_ms, operation.retain_bytes, operation.quota_bytes) < 0:
        return Refusal("MALFORMED", "a retention or quota must not be negative")
    if operation.overflow not in (commands.REFUSE, commands.DROP, commands.EXPIRE):
        return Refusal("MALFORMED", f"'{operation.overflow}' is not an overflow policy: use refuse, drop or expire")
    retains = bool(operation.retain_ms or operation.retain_bytes)
    if retains and operation.quota_bytes and operation.overflow != commands.DROP:
        text = "retained messages would fill the quota: a topic with retention needs the overflow policy 'drop'"
        return Refusal("UNSUPPORTED", text)
    return None


def _created(
    context: DecisionContext,
    operation: commands.CreateTopic,
    topic_id: int,
    *,
    created: bool = False,
    altered: bool = False,
) -> events.TopicCreated:
    return events.TopicCreated(
        context.claim,
        topic_id,
        operation.name,
        operation.retain_ms,
        operation.retain_bytes,
        created,
        operation.quota_bytes,
        operation.overflow,
        altered,
    )


def _delete_topic(context: DecisionContext, operation: commands.DeleteTopic) -> Outcome:
    topic = context.state.topics.get(operation.name)
    if topic is None:
        return refuse_unknown_topic(operation.name)
    return events.TopicDeleted(context.claim, topic.id)


# Registry and sessions.


def _registry_set(context: DecisionContext, operation: commands.RegistrySet) -> Outcome:
    refusal = refuse_name(operation.namespace, "namespace") or refuse_key(operation.key)
    if refusal is not None:
        return refusal
    entries = context.state.registry.get(operation.namespace, {})
    known = entries.get(operation.key)
    version = known.version if known is not None else 0
    if operation.version >= 0 and operation.version != version:
        return Refusal("REGISTRY_CONFLICT", f"entry '{operation.key}' has version {version}, not {operation.version}")
    if operation.value is None:
        return events.RegistryChanged(context.claim, operation.namespace, operation.key, None, 0)
    if len(operation.value) > REGISTRY_VALUE_BYTES_MAX:
        return Refusal("TOO_LARGE", f"a registry value has at most {REGISTRY_VALUE_BYTES_MAX} bytes")
    if known is None and len(entries) >= context.limits.registry_entries_per_namespace_max:
        what = f"registry entries of '{operation.namespace}'; `oncemq registry rm` deletes those that are not needed"
        return limit_reached(context.limits.registry_entries_per_namespace_max, what)
    if known is None and context.state.registry_entries >= context.limits.registry_entries_max:
        return limit_reached(context.limits.registry_entries_max, "registry entries")
    return events.RegistryChanged(context.claim, operation.namespace, operation.key, operation.value, version + 1)


def _delete_session(context: DecisionContext, operation: commands.RemoveSession) -> Outcome:
    session = context.state.sessions.get(operation.session)
    if session is None:
        return Refusal("SESSION_UNKNOWN", f"there is no session '{operation.session}'")
    if isinstance(context.claim, events.Claim) and context.claim.session_id == session.id:
        return Refusal("SESSION_UNKNOWN", "a session cannot delete itself")
    return events.SessionDeleted(context.claim, session.id)


_DECIDERS: dict[type, Callable[[DecisionContext, Any], Outcome]] = {
    commands.Put: decide_put,
    commands.Transact: decide_transact,
    commands.Settle: decide_single_settle,
    commands.Void: lambda context, _: events.Voided(context.claim),
    commands.CreateTopic: _create_topic,
    commands.DeleteTopic: _delete_topic,
    commands.PutSchema: decide_put_schema,
    commands.Subscribe: decide_subscribe,
    commands.Unsubscribe: decide_unsubscribe,
    commands.Open: decide_open,
    commands.Close: decide_close,
    commands.Seek: decide_seek,
    commands.Stage: decide_stage,
    commands.Commit: decide_commit,
    commands.Abort: decide_abort,
    commands.RegistrySet: _registry_set,
    commands.RemoveSession: _delete_session,
    commands.RemoveKeys: decide_remove_keys,
    commands.Assign: decide_assign,
}
