"""Gets and acks of a subscription with one owner: the caller, who has an epoch, or the gateway.

A get moves nothing, so it may be repeated. Without a position it starts at the first message that is not acked.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oncemq.gateways.http.framework.endpoint import Call
from oncemq.gateways.http.v1.ownership import gateway_reader, refuse_other_topic, with_caller_epoch
from oncemq.gateways.http.v1.rendering import decode_messages
from oncemq.gateways.subscription import OpenSubscription, SubscriptionKey
from oncemq.gateways.subscription_reader import retry_when_stale
from oncemq.protocol import errors
from oncemq.protocol.message import Message

#: If another consumer has taken the subscription over, the gateway takes it back, once.
_ATTEMPTS = 2


class GetRequest(msgspec.Struct, frozen=True):
    limit: int
    bytes_max: int
    #: None: the acked position.
    position: int | None = None
    #: Ack all offsets below this one; None: no ack.
    ack: int | None = None
    wait_ms: int = 0

    @property
    def names_offsets(self) -> bool:
        """It is valid only for the subscription as the caller knew it."""
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


async def fetch(call: Call[Any, Any], key: SubscriptionKey, epoch: int, request: GetRequest) -> Fetched:
    """Get messages under the caller's epoch, or (0) the gateway's. Raises what the broker refuses."""
    if epoch:
        return await with_caller_epoch(call, key, epoch, lambda opened: _fetch_as_caller(opened, request))
    reader = gateway_reader(call, key)

    async def fetch_as_gateway() -> Fetched:
        return await _fetch(await reader.open(), request)

    return await retry_when_stale(reader, fetch_as_gateway, names_offsets=request.names_offsets, attempts=_ATTEMPTS)


async def _fetch_as_caller(opened: OpenSubscription, request: GetRequest) -> Fetched:
    if request.position is None:
        await opened.find_acked()
    return await _fetch(opened, request)


async def _fetch(opened: OpenSubscription, request: GetRequest) -> Fetched:
    """The acked position that is known here may be too low: the reply shows whether it is."""
    bytes_max = request.bytes_max if request.limit > 1 else 1
    ack = request.ack if request.ack is not None else -1
    position = request.position if request.position is not None else max(opened.acked, request.ack or 0)
    try:
        reply, payloads = await opened.poll(position, bytes_max, request.wait_ms, ack)
        if request.position is None and reply.acked > position:
            position = reply.acked
            reply, payloads = await opened.poll(position, bytes_max, request.wait_ms, ack)
    except errors.RangeGone:
        if request.position is not None:
            raise
        position = await opened.find_acked()
        reply, payloads = await opened.poll(position, bytes_max, request.wait_ms, ack)
    messages, is_cut = decode_messages(opened.owned.topic, reply, payloads, request.limit)
    next_position = messages[-1].offset + 1 if is_cut else reply.next_position
    return Fetched(
        reply.topic_id, opened.epoch, position, next_position, reply.acked, reply.end_offset, reply.dropped, messages
    )


async def acknowledge(
    call: Call[Any, Any], key: SubscriptionKey, epoch: int, upto: int, topic_id: int = 0
) -> tuple[int, int]:
    """Ack all offsets below `upto`. Returns the acked position and the epoch. Raises what the broker refuses."""
    if epoch:
        return await with_caller_epoch(call, key, epoch, lambda opened: opened.ack(upto), topic_id), epoch
    reader = gateway_reader(call, key)
    refuse_other_topic(await reader.open(), topic_id)

    async def ack_as_gateway() -> tuple[int, int]:
        opened = await reader.open()
        refuse_other_topic(opened, topic_id)
        return await opened.ack(upto), opened.epoch

    return await retry_when_stale(reader, ack_as_gateway, names_offsets=True, attempts=_ATTEMPTS)
