"""Resolves `earliest`, `latest` and times to offsets of a topic, as the broker knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from oncemq.client.internal import internal_api
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.commands import START_NEW, Find, Read
from oncemq.protocol.replies import FindReply, GetReply
from oncemq.spark.source.offset_spec import EARLIEST, LATEST, OffsetSpec, Timestamp
from oncemq.spark.source.topic_selection import TopicSelection


class TopicBounds(msgspec.Struct, frozen=True, gc=False):
    """A topic's id, the offset of its next message, and the offset of the first message that is still stored."""

    topic_id: int
    end: int
    first: int


def topic_bounds(client: Client, topic: str) -> TopicBounds:
    """Raises TopicUnknown."""
    reply = internal_api(client).ask(Read(topic, START_NEW, 1), GetReply)
    return TopicBounds(reply.topic_id, reply.end_offset, reply.acked)


def existing_topics(client: Client, topics: Iterable[str]) -> dict[str, TopicBounds]:
    """The bounds of those topics that exist."""
    found = {}
    for topic in topics:
        try:
            found[topic] = topic_bounds(client, topic)
        except errors.TopicUnknown:
            continue
    return found


def matching_topics(client: Client, is_read: Callable[[str], object]) -> dict[str, TopicBounds]:
    """The bounds of the topics that match now."""
    return {
        info.name: TopicBounds(info.topic_id, info.end_offset, info.first_offset)
        for info in client.topics()
        if is_read(info.name)
    }


def selected_topics(client: Client, selection: TopicSelection) -> dict[str, TopicBounds]:
    """The bounds of those selected topics that exist."""
    if selection.topics:
        return existing_topics(client, selection.topics)
    return matching_topics(client, selection.matcher())


def resolve_offset(client: Client, topic: str, bounds: TopicBounds, spec: OffsetSpec) -> int:
    """Return the offset that is meant. Raises OffsetOutOfRange, RangeGone, or TopicGone if another topic has the name
    by now."""
    if spec == EARLIEST:
        return bounds.first
    if spec == LATEST:
        return bounds.end
    if isinstance(spec, Timestamp):
        found = internal_api(client).ask(Find(topic, spec.time_ms), FindReply)
        if found.topic_id != bounds.topic_id:
            raise errors.TopicGone(f"topic '{topic}' was deleted and created again in the meantime")
        if spec.is_required and found.offset >= bounds.end:
            raise errors.OffsetOutOfRange(
                f"topic '{topic}' has no message from {spec} on; startingOffsetsByTimestampStrategy=latest starts at "
                "its end in that case"
            )
        return found.offset
    assert isinstance(spec, int)
    if spec > bounds.end:
        raise errors.OffsetOutOfRange(f"offset {spec} of '{topic}' does not exist yet: the topic ends at {bounds.end}")
    if spec < bounds.first:
        raise errors.RangeGone(
            f"offset {spec} of '{topic}' is no longer stored: the first stored offset is {bounds.first}"
        )
    return spec
