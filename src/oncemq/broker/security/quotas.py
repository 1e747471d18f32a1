"""Quotas of users: what a command would create or put, compared with what the user has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncemq.broker.security.caller import Caller
from oncemq.engine.state.owners import TOPIC
from oncemq.engine.state.state import State
from oncemq.protocol import commands
from oncemq.protocol.commands import ENTRY, SESSION, SUBSCRIPTION, Command, Operation
from oncemq.protocol.limits import BATCH_COUNT_MAX
from oncemq.protocol.patterns import is_pattern
from oncemq.protocol.replies import NotNow, Refusal

#: How often the bytes that a user's topics store are counted. In between, only what is put is added.
_COUNT_EVERY_MS = 1_000


def refuse_over_quota(
    state: State, caller: Caller, command: Command, now_ms: int, owner_of: Callable[[str], Caller | None]
) -> Refusal | NotNow | None:
    """Refuse a command that would exceed a quota. `owner_of` returns the user that a topic's bytes count for."""
    if isinstance(command, commands.Hello):
        is_new = command.session not in state.sessions
        return _over(state, caller, SESSION, "sessions", caller.quotas.sessions) if is_new else None
    if not isinstance(command, commands.Numbered | commands.Keyed) or _is_decided(state, command):
        # A repetition gets its verdict, whatever the quotas are now.
        return None
    limit = caller.quotas.keys
    if limit and isinstance(command, commands.Keyed) and state.keys.count_of(caller.user) >= limit:
        return _reached(caller, "idempotency keys", limit)
    operation = command.operation
    refusal = _over_counts(state, caller, operation)
    return refusal or _over_amounts(state, caller, operation, now_ms, owner_of)


def _is_decided(state: State, command: commands.Numbered | commands.Keyed) -> bool:
    if isinstance(command, commands.Keyed):
        return state.keys.get(command.principal, command.key) is not None
    session = state.sessions.get(command.session)
    return session is not None and command.number <= session.last_number


def _over_counts(state: State, caller: Caller, operation: Operation) -> Refusal | None:
    quotas = caller.quotas
    created = new_topics(state, operation)
    if created and quotas.topics and state.owners.count(TOPIC, caller.user) + len(created) > quotas.topics:
        return _reached(caller, "topics", quotas.topics)
    if isinstance(operation, commands.Subscribe) and not _is_subscribed(state, operation):
        return _over(state, caller, SUBSCRIPTION, "subscriptions", quotas.subscriptions)
    if isinstance(operation, commands.RegistrySet) and operation.value is not None:
        is_new = operation.key not in state.registry.get(operation.namespace, {})
        return _over(state, caller, ENTRY, "registry entries", quotas.registry_entries) if is_new else None
    return None


def _over_amounts(
    state: State, caller: Caller, operation: Operation, now_ms: int, owner_of: Callable[[str], Caller | None]
) -> NotNow | None:
    envelopes = commands.envelopes_of(operation)
    if not envelopes or not all(1 <= each.count <= BATCH_COUNT_MAX and each.size >= 0 for each in envelopes):
        # The engine refuses what is not valid.
        return None
    per_s = caller.quotas.messages_per_s
    if per_s:
        if not caller.usage.may_put(now_ms, per_s):
            text = f"user '{caller.user}' has put more than {per_s} messages per second, its quota"
            return NotNow("RATE_LIMITED", text)
        caller.usage.count_put(sum(envelope.count for envelope in envelopes))
    for put in operation.puts if isinstance(operation, commands.Transact) else (operation,):
        full = _over_storage(state, put, now_ms, owner_of)
        if full is not None:
            return full
    return None


def _over_storage(state: State, put: Any, now_ms: int, owner_of: Callable[[str], Caller | None]) -> NotNow | None:
    owner = owner_of(put.topic)
    if owner is None or not owner.quotas.stored_bytes:
        return None
    usage, limit = owner.usage, owner.quotas.stored_bytes
    if now_ms >= usage.stored_until_ms:
        usage.stored_bytes = _stored_bytes(state, owner.user)
        usage.stored_until_ms = now_ms + _COUNT_EVERY_MS
    if usage.stored_bytes + put.envelope.size > limit:
        text = f"the topics of user '{owner.user}' have reached their quota of {limit} bytes"
        return NotNow("QUOTA_FULL", text)
    usage.stored_bytes += put.envelope.size
    return None


def _stored_bytes(state: State, user: str) -> int:
    """Return what the topics of a user store, with what is delayed and staged."""
    topics = {state.topics[name].id: state.topics[name] for name in state.owners.topics_of(user)}
    staged = (batch.size for stage in state.stages.values() if stage.topic_id in topics for batch in stage.batches)
    return sum(topic.stored_bytes + topic.delayed_bytes for topic in topics.values()) + sum(staged)


def new_topics(state: State, operation: Operation) -> set[str]:
    """Return the topics that an operation would create."""
    names: set[str] = set()
    if isinstance(operation, commands.CreateTopic):
        names = {operation.name}
    elif isinstance(operation, commands.Subscribe):
        names = set() if is_pattern(operation.topic) else {operation.topic}
    elif isinstance(operation, commands.Put):
        names = {operation.topic} if operation.create else set()
    elif isinstance(operation, commands.Transact):
        names = {put.topic for put in operation.puts if put.create}
    return {name for name in names if name not in state.topics}


def _is_subscribed(state: State, operation: commands.Subscribe) -> bool:
    if is_pattern(operation.topic):
        return (operation.topic, operation.subscriber) in state.patterns
    topic = state.topics.get(operation.topic)
    return topic is not None and operation.subscriber in topic.subscriptions


def _over(state: State, caller: Caller, kind: str, what: str, limit: int) -> Refusal | None:
    return _reached(caller, what, limit) if limit and state.owners.count(kind, caller.user) >= limit else None


def _reached(caller: Caller, what: str, limit: int) -> Refusal:
    return Refusal("QUOTA_REACHED", f"user '{caller.user}' has reached its quota of {limit} {what}")
