"""Acks of both kinds of subscription; take, nack and extend of shared ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncemq.client.gateway_api import STALE_EPOCH
from oncemq.gateways.batches import verified_payload
from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, answer, endpoint
from oncemq.gateways.http.framework.fields import (
    BytesMax,
    Epoch,
    Id,
    Offset,
    SubscriberName,
    TopicId,
    TopicName,
    WaitMs,
)
from oncemq.gateways.http.framework.identity import REFUSALS, Protected, is_protected, perform, refuse_protection
from oncemq.gateways.http.v1.consume import acknowledge
from oncemq.gateways.http.v1.messages import CONSUMING
from oncemq.gateways.http.v1.ownership import join_shared, refuse_other_topic, with_topic_id
from oncemq.gateways.http.v1.rendering import TaskView, task_of, undecodable_tasks
from oncemq.gateways.subscription import SubscriptionKey
from oncemq.protocol import errors
from oncemq.protocol.batch import decode_stored
from oncemq.protocol.commands import Extend, Settle, Take
from oncemq.protocol.frames import Frame
from oncemq.protocol.limits import LEASE_MS_MAX, NAME_BYTES_MAX, RANGES_MAX
from oncemq.protocol.replies import ExtendReply, OpenReply, SettleReply, TakeReply, expect

ENDPOINTS: list[Endpoint] = []

T = TypeVar("T")

Offsets = Annotated[list[Offset], Meta(min_length=1, max_length=10_000)]
DelayMs = Annotated[int, Meta(ge=0, le=LEASE_MS_MAX)]


class SharedParameters(msgspec.Struct, frozen=True):
    topic: TopicName
    subscriber: SubscriberName


class SharedChange(Protected, frozen=True):
    topic: TopicName
    subscriber: SubscriberName


class TakeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: A name that each consumer chooses at random.
    member: Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
    #: Rises with each take that returned messages. A repeated number returns the same lease.
    number: Id
    count_max: Annotated[int, Meta(ge=1, le=10_000)] = 1
    bytes_max: BytesMax = 2**20
    wait_ms: WaitMs = 0
    epoch: Epoch = 0


class Taken(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int
    epoch: int
    #: Needed to ack or nack; 0: there is no message, and the number may be used again.
    token: int
    #: How long these messages are reserved for this consumer.
    lease_ms: int
    #: Maximum delivery attempts. A message that fails at its last attempt must be put into the dead-letter topic and
    #: acked, in one transaction. 0: unlimited.
    tries_max: int
    dead_topic: str
    tasks: list[TaskView]


class AckBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For a subscription with one owner: `upto`. For a shared one: `token` and `offsets`."""

    #: Ack all offsets below this one.
    upto: Offset | UnsetType = UNSET
    token: Id | UnsetType = UNSET
    offsets: Offsets | UnsetType = UNSET
    epoch: Epoch = 0
    topic_id: TopicId = 0


class Acked(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: str
    subscriber: str
    epoch: int
    #: All offsets below are acked.
    acked: int | UnsetType = UNSET
    #: Of a shared one: offsets whose lease had expired. Another consumer has them, or has settled them.
    lost: list[int] | UnsetType = UNSET


class NackBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: Id
    offsets: Offsets
    #: How long before they are delivered again.
    delay_ms: DelayMs = 0
    epoch: Epoch = 0
    topic_id: TopicId = 0


class ExtendBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: Annotated[list[Id], Meta(min_length=1, max_length=RANGES_MAX)]
    epoch: Epoch = 0


class Extended(msgspec.Struct, frozen=True):
    #: Tokens of leases that have expired.
    lost: list[int]


_PATH = "/v1/topics/{topic}/subscriptions/{subscriber}"
_TASK = TaskView(3, 1_790_000_000_000, "1000000000001-3", "one pizza", tries=1)
_TAKEN = Taken("orders", 281474976710657, 5, 12, 30_000, 0, "", [_TASK])


@endpoint(
    ENDPOINTS,
    "POST",
    _PATH + "/take",
    tag="sharing",
    summary="Take messages from a shared subscription",
    parameters=SharedParameters,
    body=TakeBody,
    waits=True,
    body_examples={"ten": {"member": "cook-8f3a", "number": 1, "count_max": 10, "wait_ms": 20_000}},
    replies=(Reply(body=Taken, description="A lease, or nothing.", example=_TAKEN),),
    refusals=CONSUMING,
)
async def take(call: Call[SharedParameters, TakeBody]) -> Answer:
    """Each message goes to one member, for the duration of a lease. If the response is lost, repeat the take with the
    same number: it returns the same lease. Settle the messages with POST …/ack or …/nack; otherwise they are delivered
    again when the lease expires."""
    topic, subscriber = call.parameters.topic, call.parameters.subscriber
    body = call.body

    async def ask(opened: OpenReply) -> Taken:
        command = Take(
            opened.topic_id,
            subscriber,
            opened.epoch,
            body.member,
            body.number,
            body.count_max,
            body.bytes_max,
            body.wait_ms,
        )
        reply, payloads = await call.link.wait(command)
        return _taken(topic, opened, expect(reply, TakeReply), payloads)

    return answer(await _as_member(call, (topic, subscriber), body.epoch, ask))


@endpoint(
    ENDPOINTS,
    "POST",
    _PATH + "/ack",
    tag="consuming",
    summary="Ack messages",
    parameters=SharedChange,
    body=AckBody,
    body_examples={"one owner": {"upto": 4}, "shared": {"token": 12, "offsets": [3, 4]}},
    replies=(
        Reply(
            body=Acked,
            description="They are acked, and are not delivered again.",
            example=Acked("orders", "kitchen", 2, 4),
        ),
    ),
    refusals=(*CONSUMING, *REFUSALS),
)
async def ack(call: Call[SharedChange, AckBody]) -> Answer:
    """`upto` is a maximum: repeating it, or an older one, changes nothing, so it takes no key and no number. Offsets of
    a shared subscription whose lease had expired are in `lost`; the others are acked. With a key or a number, an ack of
    offsets must have the `epoch` and the `topic_id` of the take, so that a repetition has the same content."""
    body, key = call.body, (call.parameters.topic, call.parameters.subscriber)
    if isinstance(body.upto, int):
        if body.token is not UNSET or body.offsets is not UNSET:
            raise errors.Malformed("an ack needs either `upto`, or `token` and `offsets`")
        refuse_protection(call)
        acked, epoch = await acknowledge(call, key, body.epoch, body.upto, body.topic_id)
        return answer(Acked(*key, epoch, acked))
    if isinstance(body.token, UnsetType) or isinstance(body.offsets, UnsetType):
        raise errors.Malformed("an ack needs either `upto`, or `token` and `offsets`")
    done = tuple((body.token, first, count) for first, count in ranges_of(body.offsets))
    return await _settle(call, key, body, done, ())


@endpoint(
    ENDPOINTS,
    "POST",
    _PATH + "/nack",
    tag="sharing",
    summary="Nack messages",
    parameters=SharedChange,
    body=NackBody,
    body_examples={"in a second": {"token": 12, "offsets": [5], "delay_ms": 1000}},
    replies=(
        Reply(body=Acked, description="They are delivered again.", example=Acked("orders", "cooks", 5, UNSET, [])),
    ),
    refusals=(*CONSUMING, *REFUSALS),
)
async def nack(call: Call[SharedChange, NackBody]) -> Answer:
    """They are delivered to the next consumer that takes them, after `delay_ms`."""
    body, key = call.body, (call.parameters.topic, call.parameters.subscriber)
    returned = tuple((body.token, first, count, body.delay_ms) for first, count in ranges_of(body.offsets))
    return await _settle(call, key, body, (), returned)


@endpoint(
    ENDPOINTS,
    "POST",
    _PATH + "/extend",
    tag="sharing",
    summary="Renew leases",
    parameters=SharedParameters,
    body=ExtendBody,
    body_examples={"one": {"tokens": [12]}},
    replies=(Reply(body=Extended, description="They have their full duration again.", example=Extended([])),),
    refusals=CONSUMING,
)
async def extend(call: Call[SharedParameters, ExtendBody]) -> Answer:
    """Start the leases again from now. Leases in `lost` have expired."""
    body, key = call.body, (call.parameters.topic, call.parameters.subscriber)

    async def ask(opened: OpenReply) -> Extended:
        command = Extend(opened.topic_id, key[1], opened.epoch, tuple(body.tokens))
        return Extended(list((await call.link.query(command, ExtendReply)).lost))

    return answer(await _as_member(call, key, body.epoch, ask))


async def _settle(
    call: Call[Any, Any],
    key: SubscriptionKey,
    body: AckBody | NackBody,
    done: tuple[Any, ...],
    returned: tuple[Any, ...],
) -> Answer:
    require_identity(call, body.epoch, body.topic_id)

    async def ask(opened: OpenReply) -> Acked:
        refuse_other_topic(opened, body.topic_id)
        operation = Settle(opened.topic_id, key[1], opened.epoch, done, returned)
        lost = expect(await perform(call, operation), SettleReply).lost
        offsets = [offset for first, count in lost for offset in range(first, first + count)]
        return Acked(*key, opened.epoch, UNSET, offsets)

    return answer(await _as_member(call, key, body.epoch, ask, body.topic_id))


def require_identity(call: Call[Any, Any], epoch: int, topic_id: int) -> None:
    """Raises Malformed: a request with a key or a number must have the same content when it is repeated, even through
    another gateway, and even if the topic was deleted meanwhile."""
    if is_protected(call) and not (epoch and topic_id):
        raise errors.Malformed(
            "with a key or a number, also give the `epoch` and `topic_id` that the open, the get or the take returned: "
            "a repetition must have the same content"
        )


async def _as_member(
    call: Call[Any, Any],
    key: SubscriptionKey,
    epoch: int,
    ask: Callable[[OpenReply], Awaitable[T]],
    topic_id: int = 0,
) -> T:
    """Run `ask` under the caller's epoch, or (0) the subscription's epoch. That epoch rises with a seek, which is no
    reason to refuse a caller that named no epoch: then `ask` runs once more."""
    if epoch:
        return await with_topic_id(call, key[0], lambda found: ask(OpenReply(found, epoch, 0)), topic_id)
    opened = await join_shared(call, key)
    try:
        return await ask(opened)
    except STALE_EPOCH:
        opened = await join_shared(call, key, opened.epoch)
    return await ask(opened)


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Return offsets as ranges (first, count). Raises Malformed if there are too many ranges."""
    ranges: list[tuple[int, int]] = []
    for offset in sorted(set(offsets)):
        if ranges and sum(ranges[-1]) == offset:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((offset, 1))
    if len(ranges) > RANGES_MAX:
        raise errors.Malformed(f"there are {len(ranges)} ranges of offsets; the limit is {RANGES_MAX}")
    return ranges


def _taken(topic: str, opened: OpenReply, reply: TakeReply, payloads: Sequence[Frame]) -> Taken:
    tasks: list[TaskView] = []
    for head in reply.heads:
        payload = verified_payload(topic, head.first_offset, payloads[head.payload], head.checksum)
        try:
            messages = decode_stored(
                payload, topic, reply.topic_id, head.first_offset, head.time_ms, head.skip, head.count
            )
        except errors.Undecodable as error:
            tasks += undecodable_tasks(topic, reply.topic_id, head, error.text)
        else:
            tasks += [task_of(message, head.tries) for message in messages]
    sharing = opened.sharing
    tries_max, dead_topic = (0, "") if sharing is None else (sharing.tries_max, sharing.dead_topic)
    return Taken(topic, reply.topic_id, opened.epoch, reply.token, reply.lease_ms, tries_max, dead_topic, tasks)
