"""Builds verdicts from events alone: a client is told exactly what was recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncemq.engine import events
from oncemq.protocol import replies

_DONE = replies.Done()


def _stored(time_ms: int, event: events.Stored) -> replies.PutReply:
    return replies.PutReply(event.topic_id, event.first_offset, event.count, time_ms, event.subscriptions)


def _delayed(time_ms: int, event: events.Delayed) -> replies.PutReply:
    return replies.PutReply(event.topic_id, -1, event.count, time_ms, event.subscriptions)


def _transacted(time_ms: int, event: events.Transacted) -> replies.Verdict:
    return replies.TransactReply(
        tuple(
            _stored(time_ms, part) if isinstance(part, events.Stored) else _delayed(time_ms, part)
            for part in event.parts
            if isinstance(part, events.Stored | events.Delayed)
        )
    )


def _committed(time_ms: int, event: events.Committed) -> replies.Verdict:
    parts = tuple(
        replies.CommitPart(part.topic_id, part.first_offset, part.count, part.subscriptions) for part in event.parts
    )
    return replies.CommitReply(
        event.topic_id, event.first_offset, event.count, time_ms, event.subscriptions, event.before, parts
    )


#: For events with a claim. All others are answered with Done.
_VERDICTS: dict[type, Callable[[int, Any], replies.Verdict]] = {
    events.Stored: _stored,
    events.Delayed: _delayed,
    events.Transacted: _transacted,
    events.Settled: lambda _, event: replies.SettleReply(event.lost),
    events.Committed: _committed,
    events.Declined: lambda _, event: replies.Refusal(event.code, event.text),
    events.TopicCreated: lambda _, event: replies.TopicReply(event.topic_id, event.created),
    events.Subscribed: lambda _, event: replies.SubscribeReply(event.topic_id, event.acked, event.created),
    events.PatternSubscribed: lambda _, event: replies.SubscribeReply(0, 0, event.created),
    events.PatternOwnerChanged: lambda _, event: replies.OpenReply(0, event.epoch, 0),
    events.Joined: lambda _, event: replies.OpenReply(event.topic_id, event.epoch, event.acked, event.sharing),
    events.Sought: lambda _, event: replies.SeekReply(event.topic_id, event.acked),
    events.PatternSought: lambda _, __: replies.SeekReply(0, 0),
    events.OwnerChanged: lambda _, event: replies.OpenReply(event.topic_id, event.epoch, event.acked),
    events.SchemaChanged: lambda _, event: replies.SchemaReply(event.topic_id, event.version, event.schema is not None),
    events.Staged: lambda _, event: replies.StageReply(event.stage_count),
    events.RegistryChanged: lambda _, event: replies.RegistryReply(event.version),
}


def verdict_of(time_ms: int, event: events.Event) -> replies.Verdict:
    make = _VERDICTS.get(type(event))
    return make(time_ms, event) if make is not None else _DONE
