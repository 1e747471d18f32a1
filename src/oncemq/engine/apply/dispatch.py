"""Applies an event with the function for its type, and stores the verdict of its claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncemq.engine import events
from oncemq.engine.apply import leases, messages, topics
from oncemq.engine.state.session import Session
from oncemq.engine.state.state import KeyEntry, State
from oncemq.engine.verdicts import verdict_of
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
        entry = KeyEntry(claim.principal, claim.key, claim.digest, verdict, time_ms)
        state.keys[(claim.principal, claim.key)] = entry
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


def _keys_expired(state: State, _limits: Limits, _time_ms: int, event: events.KeysExpired) -> None:
    for _ in range(event.count):
        state.keys.popitem(last=False)


def _registry_changed(state: State, _limits: Limits, _time_ms: int, event: events.RegistryChanged) -> None:
    entries = state.registry.setdefault(event.namespace, {})
    keys = state.registry_keys.get(event.namespace)
    is_known = event.key in entries
    if event.value is not None:
        entries[event.key] = RegistryEntry(event.key, event.value, event.version)
        if not is_known:
            state.registry_entries += 1
            if keys is not None:
                keys.add(event.key)
        return
    if is_known:
        del entries[event.key]
        state.registry_entries -= 1
        if keys is not None:
            keys.remove(event.key)
    if not entries:
        del state.registry[event.namespace]
        state.registry_keys.pop(event.namespace, None)


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
    events.RegistryChanged: _registry_changed,
}
