"""What happens in the system, for the broker's log: topics and subscriptions that come and go, clients that take over.

Only what is rare. Written after the sync that makes it true; what stored messages and acks do is counted, not told.
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
#: So the session of an outbox is called.
_OUTBOX = "outbox-"


def is_logged(event: events.Event | None, reply: Reply | None = None) -> bool:
    """Asked for every command, so it is quick."""
    kind = type(event)
    if kind is events.Stored or kind is events.Delayed:
        return bool(event.topic_name)  # type: ignore[union-attr]
    return kind in _TELLERS or (type(reply) is Refusal and reply.code in _FENCED)


def log_lines(
    state: State, event: events.Event | None, reply: Reply | None = None, command: commands.Command | None = None
) -> list[str]:
    """Sentences. `command`: what brought it about, which has the names of what is gone."""
    if isinstance(reply, Refusal) and reply.code in _FENCED:
        return [f"a client was fenced off: {reply.text}"]
    teller = _TELLERS.get(type(event))
    return teller(state, operation_of(command), event) if teller is not None else []


def log_level(command: commands.Command | None) -> int:
    """An outbox asks after its session and takes it over whenever it is opened, from `oncemq put` each time: that
    concerns nobody. A client whose commands are fenced off is news, with an outbox too."""
    is_opened = isinstance(command, commands.Hello) and command.session.startswith(_OUTBOX)
    return logging.DEBUG if is_opened else logging.INFO


def operation_of(command: commands.Command | None) -> Any:
    return command.operation if isinstance(command, commands.Numbered | commands.Keyed) else command


def _topic_made(_state: State, _operation: Any, event: events.TopicMade) -> list[str]:
    return [_created(event.name)] if event.created else []


def _topic_removed(_state: State, operation: Any, _event: events.TopicRemoved) -> list[str]:
    return [f"deleted topic '{operation.name}'"]


def _subscribed(state: State, _operation: Any, event: events.Subscribed) -> list[str]:
    if not event.created:
        return []
    name = event.topic_name or state.topics_by_id[event.topic_id].name
    how = f"from offset {event.acked:,} on" + (", shared" if event.sharing is not None else "")
    return [*_made_on_the_way(event.topic_name), f"new subscriber '{event.subscriber}' to topic '{name}', {how}"]


def _unsubscribed(_state: State, operation: Any, event: events.Unsubscribed) -> list[str]:
    gone = [f"deleted topic '{operation.topic}': it was the last subscriber's"] if event.topic_removed else []
    return [f"'{event.subscriber}' unsubscribed from topic '{operation.topic}'", *gone]


def _pattern_subscribed(_state: State, _operation: Any, event: events.PatternSubscribed) -> list[str]:
    return [f"new subscriber '{event.subscriber}' to topics like '{event.pattern}'"] if event.created else []


def _pattern_unsubscribed(_state: State, _operation: Any, event: events.PatternUnsubscribed) -> list[str]:
    return [f"'{event.subscriber}' unsubscribed from topics like '{event.pattern}'"]


def _session_begun(_state: State, _operation: Any, event: events.SessionBegun) -> list[str]:
    # A session's id is its first epoch.
    is_new = event.session_id == event.epoch
    return [] if is_new else [f"session '{event.name}' was taken over by its next client (epoch {event.epoch})"]


def _stored(_state: State, _operation: Any, event: events.Stored | events.Delayed) -> list[str]:
    return _made_on_the_way(event.topic_name)


def _transacted(_state: State, _operation: Any, event: events.Transacted) -> list[str]:
    return [line for part in event.parts for line in _made_on_the_way(getattr(part, "topic_name", ""))]


def _subscription_expired(state: State, _operation: Any, event: events.SubscriptionExpired) -> list[str]:
    subscriber = event.subscriber.partition(commands.BY_PATTERN)[0]
    return [f"'{subscriber}' lost its place in topic '{state.topics_by_id[event.topic_id].name}' to the quota"]


def _made_on_the_way(topic: str) -> list[str]:
    return [_created(topic)] if topic else []


def _created(topic: str) -> str:
    return f"created new topic '{topic}'"


_TELLERS: dict[type, Callable[[State, Any, Any], list[str]]] = {
    events.Delayed: _stored,
    events.PatternSubscribed: _pattern_subscribed,
    events.PatternUnsubscribed: _pattern_unsubscribed,
    events.SessionBegun: _session_begun,
    events.Stored: _stored,
    events.Subscribed: _subscribed,
    events.SubscriptionExpired: _subscription_expired,
    events.TopicMade: _topic_made,
    events.TopicRemoved: _topic_removed,
    events.Transacted: _transacted,
    events.Unsubscribed: _unsubscribed,
}
