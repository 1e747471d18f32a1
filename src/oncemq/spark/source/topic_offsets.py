"""Which offset is meant by `earliest`, `latest` or a time, by the broker's word."""

from __future__ import annotations

from collections.abc import Iterable

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.commands import START_NEW, Find, Read
from oncemq.protocol.patterns import matches
from oncemq.protocol.replies import FindReply, GetReply, TopicInfo
from oncemq.spark.options import EARLIEST, LATEST, Moment, Place
from oncemq.spark.source.offsets import Position


class Extent(Position, frozen=True, gc=False):
    """A topic: its id, its end, and its first offset that is still stored."""

    first: int


def extent_of(client: Client, topic: str) -> Extent:
    """Raises TopicUnknown."""
    reply = client._run(client._ask(Read(topic, START_NEW, 1), GetReply))
    return Extent(reply.topic_id, reply.end_offset, reply.acked)


def those_there(client: Client, topics: Iterable[str]) -> dict[str, Extent]:
    """Some topics, without those that nobody has made."""
    found = {}
    for topic in topics:
        try:
            found[topic] = extent_of(client, topic)
        except errors.TopicUnknown:
            continue
    return found


def matching(client: Client, pattern: str) -> dict[str, Extent]:
    """The topics that match a pattern now."""
    levels = pattern.split(".")
    return {info.name: _extent(info) for info in client.topics() if matches(levels, info.name)}


def _extent(info: TopicInfo) -> Extent:
    return Extent(info.topic_id, info.end_offset, info.first_offset)


def offset_at(client: Client, topic: str, extent: Extent, place: Place) -> int:
    """Raises OffsetOutOfRange, RangeGone, or TopicGone where another topic has the name by now."""
    if place == EARLIEST:
        return extent.first
    if place == LATEST:
        return extent.offset
    if isinstance(place, Moment):
        found = client._run(client._ask(Find(topic, place.time_ms), FindReply))
        if found.topic_id != extent.topic_id:
            raise errors.TopicGone(f"topic '{topic}' was deleted and made again meanwhile")
        return found.offset
    assert isinstance(place, int)
    if place > extent.offset:
        raise errors.OffsetOutOfRange(f"offset {place} of '{topic}' is not there yet: its end is {extent.offset}")
    if place < extent.first:
        raise errors.RangeGone(f"offset {place} of '{topic}' is not stored any more: its first is {extent.first}")
    return place
