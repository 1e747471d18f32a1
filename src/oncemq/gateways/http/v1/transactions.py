"""Transactions: acks, settlements and puts over any topics, all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from oncemq.client.gateway_api import STALE_EPOCH, Times, make_put
from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, answer, endpoint
from oncemq.gateways.http.framework.fields import DueMs, Epoch, Id, Offset, SubscriberName, TopicId, TopicName, TtlMs
from oncemq.gateways.http.framework.identity import REFUSALS, Protected, perform
from oncemq.gateways.http.state import state_of
from oncemq.gateways.http.v1.ownership import (
    join_shared,
    open_by_gateway,
    refuse_other_topic,
    refuse_pattern,
    topic_id_of,
)
from oncemq.gateways.http.v1.put import Stored
from oncemq.gateways.http.v1.put_body import MessageBody, headers_of, key_of, value_of
from oncemq.gateways.http.v1.shared import DelayMs, ranges_of, require_identity
from oncemq.gateways.subscription import OpenSubscription
from oncemq.protocol import errors
from oncemq.protocol.commands import AckUpto, Put, Settle, Transact
from oncemq.protocol.replies import OpenReply, TransactReply, expect

ENDPOINTS: list[Endpoint] = []

PARTS_MAX = 1_000

Offsets = Annotated[list[Offset], Meta(max_length=10_000)]


class TransactionAck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For a subscription with one owner: ack all offsets below `upto`."""

    topic: TopicName
    subscriber: SubscriberName
    upto: Offset
    epoch: Epoch = 0
    topic_id: TopicId = 0


class TransactionSettle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For a shared subscription: messages to ack (`done`) and to return (`returned`)."""

    topic: TopicName
    subscriber: SubscriberName
    token: Id
    done: Offsets = []
    returned: Offsets = []
    delay_ms: DelayMs = 0
    epoch: Epoch = 0
    topic_id: TopicId = 0


class TransactionPut(MessageBody, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    topic: TopicName
    #: Create the topic if it does not exist. It is not deleted with its last subscription.
    create: bool = False
    ttl_ms: TtlMs = 0
    due_ms: DueMs = 0


class TransactionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    acks: Annotated[list[TransactionAck], Meta(max_length=PARTS_MAX)] = []
    settles: Annotated[list[TransactionSettle], Meta(max_length=PARTS_MAX)] = []
    puts: Annotated[list[TransactionPut], Meta(max_length=10_000)] = []


class Transacted(msgspec.Struct, frozen=True):
    #: In the order of the request's puts.
    puts: list[Stored]


_BODY = {
    "acks": [{"topic": "orders", "subscriber": "kitchen", "upto": 4, "epoch": 2}],
    "puts": [{"topic": "bills", "value": {"table": 7, "total": 12}, "create": True}],
}


@endpoint(
    ENDPOINTS,
    "POST",
    "/v1/transactions",
    tag="transactions",
    summary="Commit a transaction",
    parameters=Protected,
    body=TransactionBody,
    body_examples={"a message for a message": _BODY},
    replies=(
        Reply(
            body=Transacted,
            description="All of it is committed.",
            example=Transacted([Stored("bills", 281474976710658, 0, 1, 1_790_000_000_000, 0)]),
        ),
    ),
    refusals=(
        errors.TopicUnknown,
        errors.TopicGone,
        errors.NotSubscribed,
        errors.SubscriptionExpired,
        errors.KindMismatch,
        errors.SubscriptionFenced,
        errors.Sought,
        errors.LeaseLost,
        errors.OffsetOutOfRange,
        errors.DiskFull,
        errors.TopicFull,
        errors.SchemaMismatch,
        errors.SchemaRequired,
        errors.SchemaUnknown,
        errors.Unsupported,
        *REFUSALS,
    ),
)
async def transact(call: Call[Protected, TransactionBody]) -> Answer:
    """Acks, settlements and puts over any topics: all of them happen, or none. If one part is refused, the whole
    transaction is. With a key or a number, each ack and each settlement must name its epoch and its topic's id, so that
    a repetition has the same content; then the transaction happens once, even if it is repeated through another
    gateway."""
    groups = _groups(call.body.puts)
    try:
        reply = await _transact(call, groups)
    except STALE_EPOCH as error:
        uses_own_epochs = _forget_own_epochs(call)
        if isinstance(error, errors.TopicGone):
            if not await _refresh_topic_ids(call):
                raise
        elif not uses_own_epochs or not isinstance(error, errors.Fenced):
            raise
        # Nothing happened, and the gateway's own data was stale: its epoch, so that it takes the subscription back, or
        # the id of a topic that was created again.
        reply = await _transact(call, groups)
    return answer(Transacted(_stored(groups, reply)))


async def _transact(call: Call[Protected, TransactionBody], groups: list[_PutGroup]) -> TransactReply:
    acks, settles = await asyncio.gather(
        asyncio.gather(*(_ack(call, each) for each in call.body.acks)),
        asyncio.gather(*(_settle(call, each) for each in call.body.settles)),
    )
    puts, payloads = _puts(groups)
    return expect(await perform(call, Transact(tuple(acks), tuple(settles), puts), payloads), TransactReply)


def _forget_own_epochs(call: Call[Protected, TransactionBody]) -> bool:
    """Forget the gateway's epochs of this transaction's subscriptions. Returns whether it uses any."""
    state = state_of(call)
    own = [(part.topic, part.subscriber) for part in _parts(call) if not part.epoch]
    for key in own:
        state.subscriptions.opened.pop(key, None)
        state.shared.pop(key, None)
    return bool(own)


async def _refresh_topic_ids(call: Call[Protected, TransactionBody]) -> bool:
    """Look up again the topics' ids that the gateway has added. Returns whether any has changed."""
    topics = {part.topic for part in _parts(call) if part.epoch and not part.topic_id}
    cached_ids = state_of(call).subscriptions.topic_ids
    former = {topic: cached_ids.get(topic) for topic in topics}
    return bool(former) and former != {topic: await topic_id_of(call, topic, fresh=True) for topic in topics}


def _parts(call: Call[Protected, TransactionBody]) -> list[TransactionAck | TransactionSettle]:
    return [*call.body.acks, *call.body.settles]


async def _ack(call: Call[Any, Any], ack: TransactionAck) -> AckUpto:
    require_identity(call, ack.epoch, ack.topic_id)
    opened = await _opened(call, ack)
    return AckUpto(opened.topic_id, ack.subscriber, opened.epoch, ack.upto)


async def _settle(call: Call[Any, Any], settle: TransactionSettle) -> Settle:
    require_identity(call, settle.epoch, settle.topic_id)
    opened = await _opened(call, settle)
    done = tuple((settle.token, first, count) for first, count in ranges_of(settle.done))
    returned = tuple((settle.token, first, count, settle.delay_ms) for first, count in ranges_of(settle.returned))
    return Settle(opened.topic_id, settle.subscriber, opened.epoch, done, returned)


async def _opened(call: Call[Any, Any], part: TransactionAck | TransactionSettle) -> OpenSubscription | OpenReply:
    """Return the topic's id and the epoch that a part means."""
    key = (part.topic, part.subscriber)
    if not part.epoch:
        is_ack = isinstance(part, TransactionAck)
        opened = await open_by_gateway(call, key) if is_ack else await join_shared(call, key)
        refuse_other_topic(opened, part.topic_id)
        return opened
    refuse_pattern(part.topic)
    return OpenReply(part.topic_id or await topic_id_of(call, part.topic), part.epoch, 0)


class _PutGroup:
    """Puts on one topic that become one batch."""

    def __init__(self, first: TransactionPut) -> None:
        self.first = first
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Mapping[str, bytes] | None] = []
        #: Their indexes in the request.
        self.indexes: list[int] = []

    def fits(self, put: TransactionPut) -> bool:
        first = self.first
        return (put.create, put.ttl_ms, put.due_ms) == (first.create, first.ttl_ms, first.due_ms)

    def add(self, index: int, put: TransactionPut) -> None:
        self.indexes.append(index)
        self.values.append(value_of(put))
        self.keys.append(key_of(put))
        self.headers.append(headers_of(put))


def _groups(puts: list[TransactionPut]) -> list[_PutGroup]:
    """Group puts into batches. The messages of a topic keep their order."""
    groups: list[_PutGroup] = []
    last: dict[str, _PutGroup] = {}
    for index, put in enumerate(puts):
        group = last.get(put.topic)
        if group is None or not group.fits(put):
            group = last[put.topic] = _PutGroup(put)
            groups.append(group)
        group.add(index, put)
    return groups


def _puts(groups: list[_PutGroup]) -> tuple[tuple[Put, ...], tuple[bytes, ...]]:
    made = [
        make_put(
            group.first.topic,
            group.first.create,
            group.values,
            group.keys,
            group.headers,
            Times(group.first.ttl_ms, group.first.due_ms),
        )
        for group in groups
    ]
    return tuple(put for put, _ in made), tuple(payload for _, payload in made)


def _stored(groups: list[_PutGroup], reply: TransactReply) -> list[Stored]:
    found: dict[int, Stored] = {}
    for group, put in zip(groups, reply.puts, strict=True):
        for position, index in enumerate(group.indexes):
            offset = put.first_offset + position if put.first_offset >= 0 else -1
            found[index] = Stored(group.first.topic, put.topic_id, offset, 1, put.time_ms, put.subscriptions)
    return [found[index] for index in sorted(found)]
