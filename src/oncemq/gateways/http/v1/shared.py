"""Acks of both kinds of subscription, and what only shared ones have: take, nack, extend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncemq.gateways.http.framework.endpoint import JSON, Answer, Call, Endpoint, Reply, answer, endpoint
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
from oncemq.gateways.http.framework.state import Place
from oncemq.gateways.http.v1.consume import acknowledge
from oncemq.gateways.http.v1.messages import CONSUMING
from oncemq.gateways.http.v1.ownership import as_caller, joined_by_gateway, refuse_other_topic
from oncemq.gateways.http.v1.rendering import TaskView, checked, task_of
from oncemq.gateways.link import expect
from oncemq.protocol import errors
from oncemq.protocol.batch import decode_batch
from oncemq.protocol.commands import Extend, Settle, Take
from oncemq.protocol.frames import Frame
from oncemq.protocol.limits import LEASE_MS_MAX, NAME_BYTES_MAX, RANGES_MAX
from oncemq.protocol.replies import ExtendReply, OpenReply, SettleReply, TakeReply

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
    #: Drawn at random by each consumer.
    member: Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
    #: Rises with each take that brought something. The same number again brings the same lease.
    number: Id
    count_max: Annotated[int, Meta(ge=1, le=10_000)] = 1
    bytes_max: BytesMax = 2**20
    wait_ms: WaitMs = 0
    epoch: Epoch = 0


class Taken(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int
    epoch: int
    #: Settle with it; 0: there is nothing, and the number may be used again.
    token: int
    #: So long these messages are nobody else's.
    lease_ms: int
    #: A message with so many tries that can't be done is to be put into the dead-letter topic, and acked, in one
    #: transaction; 0 = never.
    tries_max: int
    dead_topic: str
    tasks: list[TaskView]


class AckBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a subscription with one owner: `upto`. Of a shared one: `token` and `offsets`."""

    #: Everything below this offset is done.
    upto: Offset | UnsetType = UNSET
    token: Id | UnsetType = UNSET
    offsets: Offsets | UnsetType = UNSET
    epoch: Epoch = 0
    topic_id: TopicId = 0


class Acked(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: str
    subscriber: str
    epoch: int
    #: All offsets below are done.
    acked: int | UnsetType = UNSET
    #: Of a shared one: offsets whose lease was over before. Somebody else has them, or has settled them.
    lost: list[int] | UnsetType = UNSET


class NackBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: Id
    offsets: Offsets
    #: They are delivered again after so long.
    delay_ms: DelayMs = 0
    epoch: Epoch = 0
    topic_id: TopicId = 0


class ExtendBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: Annotated[list[Id], Meta(min_length=1, max_length=RANGES_MAX)]
    epoch: Epoch = 0


class Extended(msgspec.Struct, frozen=True):
    #: Leases that are over.
    lost: list[int]


_PATH = "/v1/topics/{topic}/subscriptions/{subscriber}"
_TASK = TaskView(3, 1_790_000_000_000, "1000000000001-3", "one pizza", tries=1)
_TAKEN = Taken("orders", 281474976710657, 5, 12, 30_000, 0, "", [_TASK])


@endpoint(
    ENDPOINTS,
    "POST",
    _PATH + "/take",
    tag="sharing",
    summary="Take messages of a shared subscription",
    parameters=SharedParameters,
    body=TakeBody,
    body_media=(JSON,),
    waits=True,
    body_examples={"ten": {"member": "cook-8f3a", "number": 1, "count_max": 10, "wait_ms": 20_000}},
    replies=(Reply(body=Taken, description="A lease, or nothing.", example=_TAKEN),),
    refusals=CONSUMING,
)
async def take(call: Call[SharedParameters, TakeBody]) -> Answer:
    """Each message goes to one member, for the time of a lease. A take whose answer was lost is repeated with its
    number, and brings the same lease. Settle with POST …/ack or …/nack, or the messages are delivered again."""
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

    return answer(await as_member(call, (topic, subscriber), body.epoch, ask))


@endpoint(
    ENDPOINTS,
    "POST",
    _PATH + "/ack",
    tag="consuming",
    summary="Say what is done",
    parameters=SharedChange,
    body=AckBody,
    body_media=(JSON,),
    body_examples={"one owner": {"upto": 4}, "shared": {"token": 12, "offsets": [3, 4]}},
    replies=(Reply(body=Acked, description="It never comes again.", example=Acked("orders", "kitchen", 2, 4)),),
    refusals=(*CONSUMING, *REFUSALS),
)
async def ack(call: Call[SharedChange, AckBody]) -> Answer:
    """An `upto` is a maximum: repeating it, or an older one, changes nothing; so it takes no key and no number. Offsets
    of a shared subscription whose lease was over are in `lost`; the others are done. With a key or a number they name
    the `epoch` and the `topic_id` that the take had, so that a repetition says the same."""
    body, place = call.body, (call.parameters.topic, call.parameters.subscriber)
    if isinstance(body.upto, int):
        if body.token is not UNSET or body.offsets is not UNSET:
            raise errors.Malformed("an ack has either `upto`, or `token` and `offsets`")
        refuse_protection(call)
        acked, epoch = await acknowledge(call, place, body.epoch, body.upto, body.topic_id)
        return answer(Acked(*place, epoch, acked))
    if isinstance(body.token, UnsetType) or isinstance(body.offsets, UnsetType):
        raise errors.Malformed("an ack has either `upto`, or `token` and `offsets`")
    done = tuple((body.token, first, count) for first, count in ranges_of(body.offsets))
    return await _settle(call, place, body, done, ())


@endpoint(
    ENDPOINTS,
    "POST",
    _PATH + "/nack",
    tag="sharing",
    summary="Give messages back",
    parameters=SharedChange,
    body=NackBody,
    body_media=(JSON,),
    body_examples={"in a second": {"token": 12, "offsets": [5], "delay_ms": 1000}},
    replies=(Reply(body=Acked, description="They come again.", example=Acked("orders", "cooks", 5, UNSET, [])),),
    refusals=(*CONSUMING, *REFUSALS),
)
async def nack(call: Call[SharedChange, NackBody]) -> Answer:
    """To whoever takes them next, after `delay_ms`."""
    body, place = call.body, (call.parameters.topic, call.parameters.subscriber)
    returned = tuple((body.token, first, count, body.delay_ms) for first, count in ranges_of(body.offsets))
    return await _settle(call, place, body, (), returned)


@endpoint(
    ENDPOINTS,
    "POST",
    _PATH + "/extend",
    tag="sharing",
    summary="Begin leases anew",
    parameters=SharedParameters,
    body=ExtendBody,
    body_media=(JSON,),
    body_examples={"one": {"tokens": [12]}},
    replies=(Reply(body=Extended, description="They have their full time.", example=Extended([])),),
    refusals=CONSUMING,
)
async def extend(call: Call[SharedParameters, ExtendBody]) -> Answer:
    """Those in `lost` are over."""
    body, place = call.body, (call.parameters.topic, call.parameters.subscriber)

    async def ask(opened: OpenReply) -> Extended:
        command = Extend(opened.topic_id, place[1], opened.epoch, tuple(body.tokens))
        return Extended(list(expect((await call.link.ask(command))[0], ExtendReply).lost))

    return answer(await as_member(call, place, body.epoch, ask))


async def _settle(
    call: Call[Any, Any], place: Place, body: AckBody | NackBody, done: tuple[Any, ...], returned: tuple[Any, ...]
) -> Answer:
    require_identity(call, body.epoch, body.topic_id)

    async def ask(opened: OpenReply) -> Acked:
        refuse_other_topic(opened, body.topic_id)
        operation = Settle(opened.topic_id, place[1], opened.epoch, done, returned)
        lost = expect(await perform(call, operation), SettleReply).lost
        offsets = [offset for first, count in lost for offset in range(first, first + count)]
        return Acked(*place, opened.epoch, UNSET, offsets)

    return answer(await as_member(call, place, body.epoch, ask, body.topic_id))


def require_identity(call: Call[Any, Any], epoch: int, topic_id: int) -> None:
    """Raises Malformed: what is protected has to be the same when it is repeated, also through another gateway, and
    when the topic is gone."""
    if is_protected(call) and not (epoch and topic_id):
        raise errors.Malformed(
            "with a key or a number, give `epoch` and `topic_id` too, as the open, the get or the take replied them: "
            "a repetition says the same"
        )


async def as_member(
    call: Call[Any, Any], place: Place, epoch: int, ask: Callable[[OpenReply], Awaitable[T]], topic_id: int = 0
) -> T:
    """Under the caller's epoch, or (0) the one that the subscription has: it rises with a seek, which is no reason
    to refuse who did not name it."""
    if epoch:
        return await as_caller(call, place[0], epoch, ask, topic_id)
    opened = await joined_by_gateway(call, place)
    try:
        return await ask(opened)
    except (errors.Fenced, errors.Sought, errors.TopicGone):
        opened = await joined_by_gateway(call, place, opened.epoch)
    return await ask(opened)


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """(first, count) of offsets without gaps. Raises Malformed where there are too many."""
    ranges: list[tuple[int, int]] = []
    for offset in sorted(set(offsets)):
        if ranges and sum(ranges[-1]) == offset:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((offset, 1))
    if len(ranges) > RANGES_MAX:
        raise errors.Malformed(f"{len(ranges)} ranges of offsets; {RANGES_MAX} is the limit")
    return ranges


def _taken(topic: str, opened: OpenReply, reply: TakeReply, payloads: Sequence[Frame]) -> Taken:
    tasks: list[TaskView] = []
    for head in reply.heads:
        payload = checked(payloads[head.payload], head.checksum)
        start, stop = head.skip, head.skip + head.count
        messages = decode_batch(payload, topic, reply.topic_id, head.first_offset, head.time_ms, start, stop)
        tasks += [task_of(message, head.tries) for message in messages]
    sharing = opened.sharing
    tries_max, dead_topic = (0, "") if sharing is None else (sharing.tries_max, sharing.dead_topic)
    return Taken(topic, reply.topic_id, opened.epoch, reply.token, reply.lease_ms, tries_max, dead_topic, tasks)
