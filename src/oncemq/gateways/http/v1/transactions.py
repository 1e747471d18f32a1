"""Transactions: acks, settled messages and puts over any topics, all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework.endpoint import JSON, Answer, Call, Endpoint, Reply, answer, endpoint
from oncemq.gateways.http.framework.fields import DueMs, Epoch, Id, Offset, SubscriberName, TopicId, TopicName, TtlMs
from oncemq.gateways.http.framework.identity import REFUSALS, Protected, perform
from oncemq.gateways.http.v1.ownership import (
    joined_by_gateway,
    opened_by_caller,
    opened_by_gateway,
    refuse_other_topic,
    refuse_pattern,
    topic_id_of,
)
from oncemq.gateways.http.v1.put import Stored
from oncemq.gateways.http.v1.put_body import MessageBody, headers_of, key_of, value_of
from oncemq.gateways.http.v1.shared import DelayMs, ranges_of, require_identity
from oncemq.gateways.link import expect, make_put
from oncemq.protocol import errors
from oncemq.protocol.commands import AckUpto, Put, Settle, Transact
from oncemq.protocol.replies import OpenReply, TransactReply

ENDPOINTS: list[Endpoint] = []

PARTS_MAX = 1_000

Offsets = Annotated[list[Offset], Meta(max_length=10_000)]


class TransactionAck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a subscription with one owner: everything below `upto` is done."""

    topic: TopicName
    subscriber: SubscriberName
    upto: Offset
    epoch: Epoch = 0
    topic_id: TopicId = 0


class TransactionSettle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a shared subscription: messages that are done, and messages that are given back."""

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
    #: Make the topic where there is none; it stays.
    create: bool = False
    ttl_ms: TtlMs = 0
    due_ms: DueMs = 0


class TransactionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    acks: Annotated[list[TransactionAck], Meta(max_length=PARTS_MAX)] = []
    settles: Annotated[list[TransactionSettle], Meta(max_length=PARTS_MAX)] = []
    puts: Annotated[list[TransactionPut], Meta(max_length=10_000)] = []


class Transacted(msgspec.Struct, frozen=True):
    #: In the order of the puts.
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
    summary="All or nothing",
    parameters=Protected,
    body=TransactionBody,
    body_media=(JSON,),
    body_examples={"a message for a message": _BODY},
    replies=(
        Reply(
            body=Transacted,
            description="All of it happened.",
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
        errors.Unsupported,
        *REFUSALS,
    ),
)
async def transact(call: Call[Protected, TransactionBody]) -> Answer:
    """Acks, settled messages and puts over any topics: all of it, or nothing. Any part that would be refused by itself
    refuses all of it. With a key or a number each ack and settle names its epoch and its topic's id, so that a
    repetition says the same; then it happens once, whoever repeats it."""
    groups = _groups(call.body.puts)
    try:
        reply = await _transact(call, groups)
    except (errors.Fenced, errors.Sought, errors.TopicGone) as error:
        is_own = _forget_own(call)
        if isinstance(error, errors.TopicGone):
            if not await _look_up_anew(call):
                raise
        elif not is_own or not isinstance(error, errors.Fenced):
            raise
        # Nothing happened, and what was wrong is the gateway's own: the epoch, so that it takes the subscription
        # back, or the id of a topic that was made again.
        reply = await _transact(call, groups)
    return answer(Transacted(_stored(groups, reply)))


async def _transact(call: Call[Protected, TransactionBody], groups: list[_Group]) -> TransactReply:
    acks, settles = await asyncio.gather(
        asyncio.gather(*(_ack(call, each) for each in call.body.acks)),
        asyncio.gather(*(_settle(call, each) for each in call.body.settles)),
    )
    puts, payloads = _puts(groups)
    return expect(await perform(call, Transact(tuple(acks), tuple(settles), puts), payloads), TransactReply)


def _forget_own(call: Call[Protected, TransactionBody]) -> bool:
    """What the gateway has opened of this transaction's subscriptions; False: nothing."""
    own = [(part.topic, part.subscriber) for part in _parts(call) if not part.epoch]
    for place in own:
        call.state.opened.pop(place, None)
    return bool(own)


async def _look_up_anew(call: Call[Protected, TransactionBody]) -> bool:
    """Topics whose ids the gateway has added; False: they have not changed."""
    topics = {part.topic for part in _parts(call) if part.epoch and not part.topic_id}
    former = {topic: call.state.topic_ids.get(topic) for topic in topics}
    return bool(former) and former != {topic: await topic_id_of(call, topic, anew=True) for topic in topics}


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


async def _opened(call: Call[Any, Any], part: TransactionAck | TransactionSettle) -> OpenReply:
    place = (part.topic, part.subscriber)
    if not part.epoch:
        opened = await (opened_by_gateway if isinstance(part, TransactionAck) else joined_by_gateway)(call, place)
        refuse_other_topic(opened, part.topic_id)
        return opened
    if part.topic_id:
        refuse_pattern(part.topic)
        return OpenReply(part.topic_id, part.epoch, 0)
    return await opened_by_caller(call, part.topic, part.epoch)


class _Group:
    """Puts of one topic that become one batch."""

    def __init__(self, first: TransactionPut) -> None:
        self.first = first
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Mapping[str, bytes] | None] = []
        #: Where they stand in the request.
        self.places: list[int] = []

    def fits(self, put: TransactionPut) -> bool:
        first = self.first
        return (put.create, put.ttl_ms, put.due_ms) == (first.create, first.ttl_ms, first.due_ms)

    def add(self, place: int, put: TransactionPut) -> None:
        self.places.append(place)
        self.values.append(value_of(put))
        self.keys.append(key_of(put))
        self.headers.append(headers_of(put))


def _groups(puts: list[TransactionPut]) -> list[_Group]:
    """Messages of a topic keep their order."""
    groups: list[_Group] = []
    last: dict[str, _Group] = {}
    for place, put in enumerate(puts):
        group = last.get(put.topic)
        if group is None or not group.fits(put):
            group = last[put.topic] = _Group(put)
            groups.append(group)
        group.add(place, put)
    return groups


def _puts(groups: list[_Group]) -> tuple[tuple[Put, ...], tuple[bytes, ...]]:
    made = [
        make_put(
            group.first.topic,
            group.values,
            group.keys,
            group.headers,
            create=group.first.create,
            ttl_ms=group.first.ttl_ms,
            due_ms=group.first.due_ms,
        )
        for group in groups
    ]
    return tuple(put for put, _ in made), tuple(payload for _, payload in made)


def _stored(groups: list[_Group], reply: TransactReply) -> list[Stored]:
    found: dict[int, Stored] = {}
    for group, put in zip(groups, reply.puts, strict=True):
        for index, place in enumerate(group.places):
            offset = put.first_offset + index if put.first_offset >= 0 else -1
            found[place] = Stored(group.first.topic, put.topic_id, offset, 1, put.time_ms, put.subscriptions)
    return [found[place] for place in sorted(found)]
