"""Applies an event with the function for its type, and stores the verdict of its claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncemq.engine import events
from oncemq.engine.apply import leases, messages, topics
from oncemq.engine.state.key_table import KeyEntry
from oncemq.engine.state.session import Session
from oncemq.engine.state.state import State
from oncemq.engine.verdicts import verdict_of
from oncemq.protocol.commands import ENTRY, SESSION
from oncemq.protocol.limits import Limits
from oncemq.protocol.replies import RegistryEntry, Verdict


def apply(state: State, limits: Limits, time_ms: int, event: events.Event) -> Verdict | None:
    """Apply an event to the state. Return the verdict if the event answers a numbered or keyed operation."""
    state.time_ms = time_ms
    _APPLIERS[type(event)](state, limits, time_ms, event)
    claim: events.AnyClaim | None = getattr(event, "claim", None)
    if claim is None:
        return None
    verdict = verdict_of(time_ms, event)
    if isinstance(claim, events.Claim):
        session = state.session_to_change(claim.session_id)
        assert session is not None
        session.remember(claim.number, claim.digest, claim.seen_below, verdict, time_ms)
    else:
        state.keys.add(KeyEntry(claim.principal, claim.key, claim.digest, verdict, time_ms))
    return verdict


def _transacted(state: State, limits: Limits, time_ms: int, event: events.Transacted) -> None:
    for part in event.parts:
        _APPLIERS[type(part)](state, limits, time_ms, part)


def _session_started(state: State, limits: Limits, time_ms: int, event: events.SessionStarted) -> None:
    session = state.session_to_change(event.session_id)
    if session is None:
        session = Session(event.session_id, event.name, event.anonymous)
        if state.capture is not None:
            session.captured = state.capture.generation
        state.sessions[event.name] = state.sessions_by_id[event.session_id] = session
        if state.session_names is not None:
            state.session_names.add(event.name)
        if event.anonymous:
            state.schedule.sessions.add(time_ms + limits.session_idle_ms, event.session_id)
    session.start(event.epoch, event.nonce, event.window, time_ms)
    state.next_epoch = event.epoch + 1


def _session_ended(
    state: State, _limits: Limits, _time_ms: int, event: events.SessionEnded | events.SessionDeleted
) -> None:
    session = state.session_to_change(event.session_id)
    if session is not None:
        del state.sessions_by_id[event.session_id]
        del state.sessions[session.name]
        if state.session_names is not None:
            state.session_names.remove(session.name)
        state.schedule.sessions.discard(event.session_id)
        state.owners.forget(SESSION, "", session.name)


def _keys_expired(state: State, _limits: Limits, _time_ms: int, event: events.KeysExpired) -> None:
    state.keys.expire(event.count)


def _keys_removed(state: State, _limits: Limits, _time_ms: int, event: events.KeysRemoved) -> None:
    for key in event.keys:
        state.keys.free(event.principal, key)


def _registry_changed(state: State, _limits: Limits, _time_ms: int, event: events.RegistryChanged) -> None:
    if event.value is None:
        _delete_registry_entry(state, event.namespace, event.key)
        return
    entries = state.registry.get(event.namespace)
    if entries is None:
        entries = state.registry[event.namespace] = {}
        if state.namespaces is not None:
            state.namespaces.add(event.namespace)
    if event.key not in entries:
        state.registry_entries += 1
        if event.namespace in state.registry_keys:
            state.registry_keys[event.namespace].add(event.key)
    entries[event.key] = RegistryEntry(event.key, event.value, event.version)


def _delete_registry_entry(state: State, namespace: str, key: str) -> None:
    entries = state.registry.get(namespace, {})
    if key not in entries:
        return
    del entries[key]
    state.owners.forget(ENTRY, namespace, key)
    state.registry_entries -= 1
    if namespace in state.registry_keys:
        state.registry_keys[namespace].remove(key)
    if not entries:
        del state.registry[namespace]
        state.registry_keys.pop(namespace, None)
        if state.namespaces is not None:
            state.namespaces.remove(namespace)


def _owned(state: State, _limits: Limits, _time_ms: int, event: events.Owned) -> None:
    for entry in event.entries:
        state.owners.assign(*entry)


def _nothing(_state: State, _limits: Limits, _time_ms: int, _event: events.Event) -> None:
    """The event changes nothing except its claim."""


_APPLIERS: dict[type, Callable[[State, Limits, int, Any], None]] = {
    **topics.APPLIERS,
    **messages.APPLIERS,
    **leases.APPLIERS,
    events.Transacted: _transacted,
    events.Joined: _nothing,
    events.SessionStarted: _session_started,
    events.SessionEnded: _session_ended,
    events.SessionDeleted: _session_ended,
    events.Declined: _nothing,
    events.Voided: _nothing,
    events.KeysExpired: _keys_expired,
    events.KeysRemoved: _keys_removed,
    events.RegistryChanged: _registry_changed,
    events.Owned: _owned,
}
