"""Verdicts out of events alone: what a client is told is what was recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncemq.engine import events as ev
from oncemq.engine import replies as re

_DONE = re.Done()


def _stored(time_ms: int, event: ev.Stored) -> re.Verdict:
    return re.PutReply(event.topic_id, event.first_offset, event.count, time_ms, event.subscriptions)


def _delayed(time_ms: int, event: ev.Delayed) -> re.Verdict:
    return re.PutReply(event.topic_id, -1, event.count, time_ms, event.subscriptions)


def _transacted(time_ms: int, event: ev.Transacted) -> re.Verdict:
    return re.TransactReply(
        tuple(
            re.PutReply(
                part.topic_id,
                part.first_offset if isinstance(part, ev.Stored) else -1,
                part.count,
                time_ms,
                part.subscriptions,
            )
            for part in event.parts
            if isinstance(part, ev.Stored | ev.Delayed)
        )
    )


def _committed(time_ms: int, event: ev.Committed) -> re.Verdict:
    parts = tuple(
        re.CommitPart(part.topic_id, part.first_offset, part.count, part.subscriptions) for part in event.parts
    )
    return re.CommitReply(
        event.topic_id, event.first_offset, event.count, time_ms, event.subscriptions, event.before, parts
    )


#: Events that carry a claim. What is not named here is answered by "done".
_VERDICTS: dict[type, Callable[[int, Any], re.Verdict]] = {
    ev.Stored: _stored,
    ev.Delayed: _delayed,
    ev.Transacted: _transacted,
    ev.Settled: lambda _, event: re.SettleReply(event.lost),
    ev.Committed: _committed,
    ev.Declined: lambda _, event: re.Refusal(event.code, event.text),
    ev.TopicMade: lambda _, event: re.TopicReply(event.topic_id, event.created),
    ev.Subscribed: lambda _, event: re.SubscribeReply(event.topic_id, event.acked, event.created),
    ev.PatternSubscribed: lambda _, event: re.SubscribeReply(0, 0, event.created),
    ev.PatternOwnerChanged: lambda _, event: re.OpenReply(0, event.epoch, 0),
    ev.Joined: lambda _, event: re.OpenReply(event.topic_id, event.epoch, event.acked, event.sharing),
    ev.Sought: lambda _, event: re.SeekReply(event.topic_id, event.acked),
    ev.PatternSought: lambda _, __: re.SeekReply(0, 0),
    ev.OwnerChanged: lambda _, event: re.OpenReply(event.topic_id, event.epoch, event.acked),
    ev.Staged: lambda _, event: re.StageReply(event.stage_count),
    ev.RegistryChanged: lambda _, event: re.RegistryReply(event.version),
}


def verdict_of(time_ms: int, event: ev.Event) -> re.Verdict:
    make = _VERDICTS.get(type(event))
    return make(time_ms, event) if make is not None else _DONE
