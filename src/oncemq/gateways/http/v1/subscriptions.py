"""Subscriptions: list, create, show, seek, delete. Their messages are consumed through messages.py and shared.py."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, answer, endpoint
from oncemq.gateways.http.framework.fields import (
    Moment,
    PageLimit,
    Start,
    SubscriberName,
    TopicOrPattern,
    milliseconds_of,
    start_of,
)
from oncemq.gateways.http.framework.identity import REFUSALS, Protected, perform
from oncemq.gateways.http.lookups import find_subscription, just_before
from oncemq.protocol import errors
from oncemq.protocol.commands import BY_PATTERN, Patterns, Seek, Sharing, Subscribe, Subscriptions, Unsubscribe
from oncemq.protocol.limits import LEASE_MS_MAX, LEASE_MS_MIN, NAME_BYTES_MAX
from oncemq.protocol.patterns import is_pattern
from oncemq.protocol.replies import (
    PatternInfo,
    PatternsReply,
    SeekReply,
    SubscribeReply,
    SubscriptionInfo,
    SubscriptionsReply,
    expect,
)

ENDPOINTS: list[Endpoint] = []
_endpoint = partial(endpoint, ENDPOINTS, tag="subscriptions")


class SharingBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each message goes to one of any number of consumers, for the duration of a lease."""

    lease_ms: Annotated[int, Meta(ge=LEASE_MS_MIN, le=LEASE_MS_MAX)] = 30_000
    #: Maximum delivery attempts before a message is to be put into the dead-letter topic; 0: unlimited.
    tries_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    dead_topic: Annotated[str, Meta(max_length=NAME_BYTES_MAX)] = ""
    #: Of the messages with the same key, only the oldest one is delivered at a time.
    key_order: bool = False


class SubscriptionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start: Start = "new"
    #: Default: one owner, which gets all messages in order.
    sharing: SharingBody | None = None


class Subscribed(msgspec.Struct, frozen=True):
    topic: str
    subscriber: str
    #: 0 for a pattern.
    topic_id: int
    #: All offsets below are acked; 0 for a pattern.
    acked: int
    #: False: it existed before.
    created: bool


class SubscriptionView(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: str
    subscriber: str
    epoch: int
    #: How many messages are not acked.
    lag: int
    #: All offsets below are acked.
    acked: int | UnsetType = UNSET
    end_offset: int | UnsetType = UNSET
    #: The pattern that it belongs to.
    pattern: str | UnsetType = UNSET
    sharing: SharingBody | UnsetType = UNSET
    #: Of a shared one: how many messages above `acked` are acked, how many are leased, and its number of consumers.
    done: int | UnsetType = UNSET
    leased: int | UnsetType = UNSET
    members: int | UnsetType = UNSET
    #: How many messages it has lost to its topic's quota.
    dropped: int = 0
    #: Of a pattern: how many topics match it now.
    topics: int | UnsetType = UNSET


class SubscriptionsView(msgspec.Struct, frozen=True):
    subscriptions: list[SubscriptionView]
    #: The `after` of the next page; empty: this is the last page.
    after: str


class SeekBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either `to`, or `time`: the first message that was stored at this time or later."""

    to: Start | UnsetType = UNSET
    time: Moment | UnsetType = UNSET


class Sought(msgspec.Struct, frozen=True):
    topic: str
    subscriber: str
    #: The new position; 0 for a pattern.
    acked: int


class SubscriptionsParameters(msgspec.Struct, frozen=True):
    topic: TopicOrPattern
    after: Annotated[str, Meta(description="List the names after this one, in their order.")] = ""
    limit: PageLimit = 100


class SubscriptionParameters(msgspec.Struct, frozen=True):
    topic: TopicOrPattern
    subscriber: SubscriberName


class SubscriptionChange(Protected, frozen=True):
    topic: TopicOrPattern
    subscriber: SubscriberName


_PATH = "/v1/topics/{topic}/subscriptions/{subscriber}"
_VIEW = SubscriptionView("orders", "kitchen", 2, 3, 0, 3)
_MADE = Subscribed("orders", "kitchen", 281474976710657, 0, True)


@_endpoint(
    "GET",
    "/v1/topics/{topic}/subscriptions",
    summary="List subscriptions",
    parameters=SubscriptionsParameters,
    replies=(Reply(body=SubscriptionsView, description="A page.", example=SubscriptionsView([_VIEW], "")),),
    refusals=(errors.TopicUnknown,),
)
async def list_subscriptions(call: Call[SubscriptionsParameters, None]) -> Answer:
    """The subscriptions of a topic, including those by pattern; or those of a pattern."""
    topic, after, limit = call.parameters.topic, call.parameters.after, call.parameters.limit
    if is_pattern(topic):
        patterns = await call.link.query(Patterns(topic + BY_PATTERN + after, limit), PatternsReply)
        own = [info for info in patterns.patterns if info.pattern == topic]
        is_all = len(own) < len(patterns.patterns) or not patterns.after
        page = [_pattern_view(info) for info in own]
        return answer(SubscriptionsView(page, "" if is_all or not own else own[-1].subscriber))
    reply = await call.link.query(Subscriptions(topic, after, limit), SubscriptionsReply)
    return answer(SubscriptionsView([_view(info) for info in reply.subscriptions], reply.after))


@_endpoint(
    "PUT",
    _PATH,
    summary="Subscribe",
    parameters=SubscriptionChange,
    body=SubscriptionBody,
    is_body_required=False,
    body_examples={"from the start": {"start": "earliest"}, "shared": {"sharing": {"lease_ms": 10_000}}},
    replies=(
        Reply(status=201, body=Subscribed, description="It was created.", example=_MADE),
        Reply(
            body=Subscribed,
            description="It existed before. Its position is unchanged.",
            example=msgspec.structs.replace(_MADE, created=False),
        ),
    ),
    refusals=(errors.SubscriptionExists, errors.OffsetOutOfRange, errors.RangeGone, errors.Unsupported, *REFUSALS),
)
async def subscribe(call: Call[SubscriptionChange, SubscriptionBody]) -> Answer:
    """Creates a durable subscription. A topic that does not exist is created too, and is deleted with its last
    subscription. If the subscription exists, nothing changes. A pattern subscribes to all topics that match it now or
    later; it starts at `new` or `earliest`, and can't be shared."""
    topic, subscriber, body = call.parameters.topic, call.parameters.subscriber, call.body
    sharing = None if body.sharing is None else Sharing(*msgspec.structs.astuple(body.sharing))
    operation = Subscribe(topic, subscriber, start_of(body.start), sharing)
    reply = expect(await perform(call, operation), SubscribeReply)
    subscribed = Subscribed(topic, subscriber, reply.topic_id, reply.acked, reply.created)
    return answer(subscribed, 201 if reply.created else 200)


@_endpoint(
    "GET",
    _PATH,
    summary="Show a subscription",
    parameters=SubscriptionParameters,
    replies=(Reply(body=SubscriptionView, description="The subscription.", example=_VIEW),),
    refusals=(errors.TopicUnknown, errors.NotSubscribed),
)
async def show_subscription(call: Call[SubscriptionParameters, None]) -> Answer:
    """Its position and its lag."""
    topic, subscriber = call.parameters.topic, call.parameters.subscriber
    if not is_pattern(topic):
        return answer(_view(await find_subscription(call.link, topic, subscriber)))
    command = Patterns(just_before(topic + BY_PATTERN + subscriber), 1)
    page = (await call.link.query(command, PatternsReply)).patterns
    if not page or (page[0].pattern, page[0].subscriber) != (topic, subscriber):
        raise errors.NotSubscribed(f"'{subscriber}' is not subscribed to '{topic}'")
    return answer(_pattern_view(page[0]))


@_endpoint(
    "DELETE",
    _PATH,
    summary="Unsubscribe",
    parameters=SubscriptionChange,
    replies=(Reply(status=204, description="It is deleted."),),
    refusals=(errors.TopicUnknown, errors.NotSubscribed, errors.SubscriptionExpired, *REFUSALS),
)
async def unsubscribe(call: Call[SubscriptionChange, None]) -> Answer:
    """Deletes the subscription. Messages that no other subscription needs are deleted too, and so is a topic that was
    created by subscribing, with its last subscription."""
    await perform(call, Unsubscribe(call.parameters.topic, call.parameters.subscriber))
    return Answer(status=204)


@_endpoint(
    "POST",
    _PATH + "/seek",
    summary="Seek",
    parameters=SubscriptionChange,
    body=SeekBody,
    body_examples={"to the start": {"to": "earliest"}, "by time": {"time": "2026-11-16T09:00:00Z"}},
    replies=(Reply(body=Sought, description="The new position.", example=Sought("orders", "kitchen", 0)),),
    refusals=(
        errors.TopicUnknown,
        errors.NotSubscribed,
        errors.SubscriptionExpired,
        errors.OffsetOutOfRange,
        errors.RangeGone,
        errors.Unsupported,
        *REFUSALS,
    ),
)
async def seek(call: Call[SubscriptionChange, SeekBody]) -> Answer:
    """Moves a subscription to an offset, to `earliest` or `new`, or to a time. Its epoch rises, so that a late ack
    can't undo the seek: its consumer is refused once (SOUGHT). A subscription to a pattern can seek to `earliest`,
    `new` or a time, on all of its topics."""
    topic, subscriber, body = call.parameters.topic, call.parameters.subscriber, call.body
    if (body.to is UNSET) == (body.time is UNSET):
        raise errors.Malformed("a seek needs either `to` or `time`")
    if not isinstance(body.time, UnsetType):
        time_ms = milliseconds_of(body.time)
        if time_ms < 1:
            raise errors.Malformed("`time` must be after 1970")
        operation = Seek(topic, subscriber, time_ms=time_ms)
    else:
        assert not isinstance(body.to, UnsetType)
        operation = Seek(topic, subscriber, start_of(body.to))
    reply = expect(await perform(call, operation), SeekReply)
    return answer(Sought(topic, subscriber, reply.acked))


def _view(info: SubscriptionInfo) -> SubscriptionView:
    shared = info.sharing is not None
    return SubscriptionView(
        info.topic,
        info.subscriber,
        info.epoch,
        info.lag,
        info.acked,
        info.end_offset,
        info.pattern or UNSET,
        UNSET if info.sharing is None else SharingBody(*msgspec.structs.astuple(info.sharing)),
        info.done if shared else UNSET,
        info.leased if shared else UNSET,
        info.members if shared else UNSET,
        info.dropped,
    )


def _pattern_view(info: PatternInfo) -> SubscriptionView:
    return SubscriptionView(info.pattern, info.subscriber, info.epoch, info.lag, topics=info.topics)
