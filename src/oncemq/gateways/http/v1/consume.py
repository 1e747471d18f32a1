"""Reading a subscription with one owner: from a position, with or without an epoch of the caller's own.

A get moves nothing, so it may be repeated. Without a position it starts at what is not acked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from oncemq.gateways.http.framework.endpoint import Call
from oncemq.gateways.http.framework.state import Place
from oncemq.gateways.http.v1.ownership import as_caller, note_acked, opened_by_gateway, refuse_other_topic
from oncemq.gateways.http.v1.rendering import cut
from oncemq.gateways.link import expect
from oncemq.protocol import errors
from oncemq.protocol.commands import Ack, Get
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import AckReply, GetReply, OpenReply

#: What shows that the gateway's epoch is not the subscription's any more.
_STALE = (errors.Fenced, errors.Sought, errors.TopicGone)


class Wanted(msgspec.Struct, frozen=True):
    """What a caller asks for."""

    limit: int
    bytes_max: int
    #: None: where the subscription stands.
    position: int | None = None
    #: Everything below is done; None: nothing is said.
    ack: int | None = None
    wait_ms: int = 0

    @property
    def names_offsets(self) -> bool:
        """It holds for the subscription as the caller knew it."""
        return self.position is not None or self.ack is not None


class Fetched(msgspec.Struct, frozen=True):
    topic_id: int
    epoch: int
    position: int
    next_position: int
    acked: int
    end_offset: int
    dropped: int
    messages: list[Message]


async def fetch(call: Call[Any, Any], place: Place, epoch: int, wanted: Wanted) -> Fetched:
    """With the caller's epoch, or (0) the gateway's. Raises what the broker refuses."""
    if epoch:
        return await _fetch_as_caller(call, place, epoch, wanted)
    opened = await opened_by_gateway(call, place)
    try:
        return await _fetch(call, place, opened, wanted, opened.acked)
    except _STALE as error:
        if wanted.names_offsets and not isinstance(error, errors.Fenced):
            # These offsets mean nothing any more: the caller is told, once.
            call.state.opened.pop(place, None)
            raise
    opened = await opened_by_gateway(call, place, opened.epoch)
    return await _fetch(call, place, opened, wanted, opened.acked)


async def _fetch_as_caller(call: Call[Any, Any], place: Place, epoch: int, wanted: Wanted) -> Fetched:
    async def ask(opened: OpenReply) -> Fetched:
        acked = await acked_of(call, place, opened) if wanted.position is None else 0
        return await _fetch(call, place, opened, wanted, acked)

    return await as_caller(call, place[0], epoch, ask)


async def _fetch(call: Call[Any, Any], place: Place, opened: OpenReply, wanted: Wanted, acked: int) -> Fetched:
    """`acked` is what was last heard: the reply shows whether it is true."""
    position = wanted.position if wanted.position is not None else max(acked, wanted.ack or 0)
    try:
        reply, payloads = await _get(call, place, opened, wanted, position)
        if wanted.position is None and reply.acked > position:
            position = reply.acked
            reply, payloads = await _get(call, place, opened, wanted, position)
    except errors.RangeGone:
        if wanted.position is not None:
            raise
        position = await acked_of(call, place, opened)
        reply, payloads = await _get(call, place, opened, wanted, position)
    note_acked(call.state, place, opened.epoch, reply.acked)
    messages, is_cut = cut(place[0], reply.topic_id, reply.batches, payloads, wanted.limit)
    following = messages[-1].offset + 1 if is_cut else reply.next_position
    return Fetched(
        reply.topic_id, opened.epoch, position, following, reply.acked, reply.end_offset, reply.dropped, messages
    )


async def _get(
    call: Call[Any, Any], place: Place, opened: OpenReply, wanted: Wanted, position: int
) -> tuple[GetReply, Sequence[Frame]]:
    bytes_max = wanted.bytes_max if wanted.limit > 1 else 1
    ack = wanted.ack if wanted.ack is not None else -1
    command = Get(opened.topic_id, place[1], opened.epoch, position, bytes_max, wanted.wait_ms, ack)
    reply, payloads = await call.link.wait(command)
    return expect(reply, GetReply), payloads


async def acked_of(call: Call[Any, Any], place: Place, opened: OpenReply) -> int:
    """Where the subscription stands: an ack of nothing tells."""
    return await _ack(call, place, opened, 0)


async def acknowledge(call: Call[Any, Any], place: Place, epoch: int, upto: int, topic_id: int = 0) -> tuple[int, int]:
    """Everything below is done; returns where the subscription stands, and its epoch. Raises what the broker
    refuses."""
    if epoch:
        return await as_caller(call, place[0], epoch, lambda opened: _ack(call, place, opened, upto), topic_id), epoch
    opened = await opened_by_gateway(call, place)
    refuse_other_topic(opened, topic_id)
    try:
        return await _ack(call, place, opened, upto), opened.epoch
    except _STALE as error:
        if not isinstance(error, errors.Fenced):
            call.state.opened.pop(place, None)
            raise
    opened = await opened_by_gateway(call, place, opened.epoch)
    refuse_other_topic(opened, topic_id)
    return await _ack(call, place, opened, upto), opened.epoch


async def _ack(call: Call[Any, Any], place: Place, opened: OpenReply, upto: int) -> int:
    command = Ack(opened.topic_id, place[1], opened.epoch, upto)
    acked = expect((await call.link.ask(command))[0], AckReply).acked
    note_acked(call.state, place, opened.epoch, acked)
    return acked
