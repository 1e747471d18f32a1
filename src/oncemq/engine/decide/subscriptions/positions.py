"""Checks of offsets and positions."""

from __future__ import annotations

from oncemq.engine.state.topic import Topic
from oncemq.protocol.commands import START_EARLIEST, START_NEW
from oncemq.protocol.replies import Refusal


def start_of(topic: Topic, start: int) -> int | Refusal:
    """Return the position for a start: an offset, START_NEW or START_EARLIEST."""
    if start == START_NEW:
        return topic.next_offset
    if start == START_EARLIEST:
        return topic.index.first
    return refuse_offset(topic, start) or start


def refuse_offset(topic: Topic, offset: int) -> Refusal | None:
    """Refuse an offset that is neither stored nor the next one."""
    if offset > topic.next_offset:
        text = f"offset {offset} is beyond the end of topic '{topic.name}', which is {topic.next_offset}"
        return Refusal("OFFSET_OUT_OF_RANGE", text)
    if offset < topic.index.first:
        text = f"offset {offset} is no longer stored; topic '{topic.name}' starts at {topic.index.first}"
        return Refusal("RANGE_GONE", text)
    return None


def refuse_ack_beyond(topic: Topic, upto: int) -> Refusal:
    return Refusal("OFFSET_OUT_OF_RANGE", f"ack of {upto}; topic '{topic.name}' ends at {topic.next_offset}")


def seek_position(topic: Topic, to: int, time_ms: int) -> int | Refusal:
    """Return the first position stored at `time_ms` or later; if `time_ms` is 0, the position for `to`."""
    return topic.index.find_time(time_ms) if time_ms else start_of(topic, to)
