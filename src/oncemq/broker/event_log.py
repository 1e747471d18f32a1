"""Lines of the broker's log about what clients do: topics and subscriptions that are created or deleted, and sessions
that are taken over.

Only rare events are logged, and only after the sync that makes them durable. Stored messages and acks are counted, not
logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from oncemq.engine import events
from oncemq.engine.state.state import State
from oncemq.protocol import commands
from oncemq.protocol.replies import Refusal, Reply

_FENCED = ("FENCED", "SUBSCRIPTION_FENCED")
#: Prefix of the session names of outboxes.
_OUTBOX = "outbox-"


def is_logged(event: events.Event | None, reply: Reply | None = None) -> bool:
    """Return whether `log_lines` may have lines for it. It is called for every command and therefore cheap."""
    kind = type(event)
    if kind is events.Stored or kind is events.Delayed:
        return bool(event.topic_name)  # type: ignore[union-attr]
    return kind in _FORMATTERS or (type(reply) is Refusal and reply.code in _FENCED)


def log_lines(
    state: State, event: events.Event | None, reply: Reply | None = None, command: commands.Command | None = None
) -> list[str]:
    """Return the lines for an event. The `command` that caused it has the names of what was deleted."""
    if isinstance(reply, Refusal) and reply.code in _FENCED:
        return [f"a client was fenced off: {reply.text}"]
    formatter = _FORMATTERS.get(type(event))
    operation = command.operation if isinstance(command, commands.Numbered | commands.Keyed) else command
    return formatter(state, operation, event) if formatter is not None else []


def log_level(command: commands.Command | None) -> int:
    """Return DEBUG for an outbox that takes over its own session, which happens each time it is opened (by every
    `oncemq put`, for example). Commands that are fenced off are logged at INFO, also those of an outbox."""
    is_opened = isinstance(command, commands.Hello) and command.session.startswith(_OUTBOX)
    return logging.DEBUG if is_opened else logging.INFO


def _topic_created(_state: State, _operation: Any, event: events.TopicCreated) -> list[str]:
    return _created(event.name) if event.created else []


def _topic_deleted(_state: State, operation: Any, _event: events.TopicDeleted) -> list[str]:
    return [f"deleted topic '{operation.name}'"]


def _schema_changed(state: State, _operation: Any, event: events.SchemaChanged) -> list[str]:
    name = state.topics_by_id[event.topic_id].name
    settings = f"compatibility {event.rule}, checked by {event.check}"
    what = f"version {event.version} of the schema" if event.schema is not None else "settings of the schema"
    return [f"new {what} of topic '{name}': {settings}"]


def _subscribed(state: State, _operation: Any, event: events.Subscribed) -> list[str]:
    if not event.created:
        return []
    name = event.topic_name or state.topics_by_id[event.topic_id].name
    how = f"from offset {event.acked:,} on" + (", shared" if event.sharing is not None else "")
    return [*_created(event.topic_name), f"new subscriber '{event.subscriber}' to topic '{name}', {how}"]


def _unsubscribed(state: State, operation: Any, event: events.Unsubscribed) -> list[str]:
    if event.claim is None:
        topic = state.topics_by_id.get(event.topic_id)
        what = f"the subscription of '{event.subscriber}'" + (f" to topic '{topic.name}'" if topic is not None else "")
        gone = ", and its topic" if event.topic_removed else ""
        return [f"deleted {what}{gone}: its owner was idle for too long"]
    removed = [f"deleted topic '{operation.topic}': it was the last subscriber's"] if event.topic_removed else []
    return [f"'{event.subscriber}' unsubscribed from topic '{operation.topic}'", *removed]


def _pattern_subscribed(_state: State, _operation: Any, event: events.PatternSubscribed) -> list[str]:
    return [f"new subscriber '{event.subscriber}' to topics like '{event.pattern}'"] if event.created else []


def _pattern_unsubscribed(_state: State, _operation: Any, event: events.PatternUnsubscribed) -> list[str]:
    if event.claim is None:
        what = f"the subscription of '{event.subscriber}' to topics like '{event.pattern}'"
        return [f"deleted {what}: its owner was idle for too long"]
    return [f"'{event.subscriber}' unsubscribed from topics like '{event.pattern}'"]


def _session_started(_state: State, _operation: Any, event: events.SessionStarted) -> list[str]:
    # The id of a session is its first epoch.
    is_new = event.session_id == event.epoch
    return [] if is_new else [f"session '{event.name}' was taken over by its next client (epoch {event.epoch})"]


def _stored(_state: State, _operation: Any, event: events.Stored | events.Delayed) -> list[str]:
    return _created(event.topic_name)


def _transacted(_state: State, _operation: Any, event: events.Transacted) -> list[str]:
    return [line for part in event.parts for line in _created(getattr(part, "topic_name", ""))]


def _subscription_expired(state: State, _operation: Any, event: events.SubscriptionExpired) -> list[str]:
    subscriber = event.subscriber.partition(commands.BY_PATTERN)[0]
    return [
        f"the quota of topic '{state.topics_by_id[event.topic_id].name}' expired the subscription of '{subscriber}'"
    ]


def _created(topic: str) -> list[str]:
    """Return the line for a topic that was created, or nothing if no topic was."""
    return [f"created new topic '{topic}'"] if topic else []


_FORMATTERS: dict[type, Callable[[State, Any, Any], list[str]]] = {
    events.Delayed: _stored,
    events.PatternSubscribed: _pattern_subscribed,
    events.PatternUnsubscribed: _pattern_unsubscribed,
    events.SchemaChanged: _schema_changed,
    events.SessionStarted: _session_started,
    events.Stored: _stored,
    events.Subscribed: _subscribed,
    events.SubscriptionExpired: _subscription_expired,
    events.TopicCreated: _topic_created,
    events.TopicDeleted: _topic_deleted,
    events.Transacted: _transacted,
    events.Unsubscribed: _unsubscribed,
}
