"""Decides who owns what an event has created or taken over, and assignments to other users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from oncemq.engine import events
from oncemq.engine.decide.decision_context import DecisionContext, Outcome
from oncemq.engine.state.owners import STAGE, TOPIC, OwnerEntry
from oncemq.engine.state.state import State
from oncemq.protocol.commands import ASSIGNABLE, ENTRY, SESSION, SUBSCRIPTION, WRITER, Assign
from oncemq.protocol.names import refuse_name
from oncemq.protocol.replies import Refusal

_Key = tuple[str, str, str]


def new_owners(state: State, event: events.Event, user: str) -> events.Owned | None:
    """Return the event that makes a user the owner of what an event, which was applied, has created. What exists and
    has no owner belongs to the first user who takes it over."""
    if type(event) is events.Stored and not event.topic_name:
        return None
    keys_of = _KEYS.get(type(event))
    if keys_of is None:
        return None
    owners = state.owners
    entries = tuple((*key, user) for key in keys_of(state, event) if not owners.get(*key))
    return events.Owned(None, entries) if entries else None


def _session(_state: State, event: events.SessionStarted) -> Iterator[_Key]:
    yield SESSION, "", event.name


def _topic(_state: State, event: events.TopicCreated) -> Iterator[_Key]:
    if event.created:
        yield TOPIC, "", event.name


def _put(_state: State, event: events.Stored | events.Delayed) -> Iterator[_Key]:
    if event.topic_name:
        yield TOPIC, "", event.topic_name


def _transacted(state: State, event: events.Transacted) -> Iterator[_Key]:
    for part in event.parts:
        if isinstance(part, events.Stored | events.Delayed):
            yield from _put(state, part)


def _subscribed(state: State, event: events.Subscribed) -> Iterator[_Key]:
    if event.topic_name:
        yield TOPIC, "", event.topic_name
    yield SUBSCRIPTION, state.topics_by_id[event.topic_id].name, event.subscriber


def _opened(state: State, event: events.OwnerChanged | events.Joined) -> Iterator[_Key]:
    yield SUBSCRIPTION, state.topics_by_id[event.topic_id].name, event.subscriber


def _pattern(_state: State, event: events.PatternSubscribed | events.PatternOwnerChanged) -> Iterator[_Key]:
    yield SUBSCRIPTION, event.pattern, event.subscriber


def _staged(_state: State, event: events.Staged) -> Iterator[_Key]:
    yield STAGE, "", event.stage


def _committed(_state: State, event: events.Committed) -> Iterator[_Key]:
    if event.writer:
        yield WRITER, "", event.writer


def _registered(_state: State, event: events.RegistryChanged) -> Iterator[_Key]:
    if event.value is not None:
        yield ENTRY, event.namespace, event.key


_KEYS: dict[type, Callable[[State, Any], Iterator[_Key]]] = {
    events.SessionStarted: _session,
    events.TopicCreated: _topic,
    events.Stored: _put,
    events.Delayed: _put,
    events.Transacted: _transacted,
    events.Subscribed: _subscribed,
    events.OwnerChanged: _opened,
    events.Joined: _opened,
    events.PatternSubscribed: _pattern,
    events.PatternOwnerChanged: _pattern,
    events.Staged: _staged,
    events.Committed: _committed,
    events.RegistryChanged: _registered,
}


def decide_assign(context: DecisionContext, operation: Assign) -> Outcome:
    if operation.kind not in ASSIGNABLE:
        return Refusal("MALFORMED", f"'{operation.kind}' can't be assigned; use one of {', '.join(ASSIGNABLE)}")
    if operation.owner:
        refusal = refuse_name(operation.owner, "user's name")
        if refusal is not None:
            return refusal
    if not _exists(context.state, operation):
        return Refusal("MALFORMED", f"there is no {operation.kind} '{operation.name}'")
    of = operation.of if operation.kind in (SUBSCRIPTION, ENTRY) else ""
    entry: OwnerEntry = (operation.kind, of, operation.name, operation.owner)
    return events.Owned(context.claim, (entry,))


def _exists(state: State, operation: Assign) -> bool:
    kind, of, name = operation.kind, operation.of, operation.name
    if kind == SUBSCRIPTION:
        topic = state.topics.get(of)
        return (of, name) in state.patterns or (topic is not None and name in topic.subscriptions)
    if kind == ENTRY:
        return name in state.registry.get(of, {})
    return name in (state.sessions if kind == SESSION else state.writers)
