"""Subscriptions: list, make, look at, move, end. Their messages are consumed elsewhere (v1_messages, v1_shared)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncemq.gateways.http.framework.endpoint import JSON, Answer, Call, Endpoint, Reply, answer, endpoint
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
from oncemq.gateways.http.v1.ownership import just_before, subscription_info
from oncemq.gateways.link import expect
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
)

ENDPOINTS: list[Endpoint] = []


class SharingBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each message goes to one of any number of consumers, for the time of a lease."""

    lease_ms: Annotated[int, Meta(ge=LEASE_MS_MIN, le=LEASE_MS_MAX)] = 30_000
    #: After so many deliveries a message is to be put into the dead-letter topic; 0 = never.
    tries_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    dead_topic: Annotated[str, Meta(max_length=NAME_BYTES_MAX)] = ""
    #: Of messages with the same key only one is out at a time, the oldest.
    key_order: bool = False


class SubscriptionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start: Start = "new"
    #: Left out: one owner, who gets everything in order.
    sharing: SharingBody | None = None


class Subscribed(msgspec.Struct, frozen=True):
    topic: str
    subscriber: str
    #: 0 for a pattern.
    topic_id: int
    #: All offsets below are done; 0 for a pattern.
    acked: int
    #: False: it was there before.
    created: bool


class SubscriptionView(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: str
    subscriber: str
    epoch: int
    #: Messages that are not done.
    lag: int
    #: All offsets below are done.
    acked: int | UnsetType = UNSET
    end_offset: int | UnsetType = UNSET
    #: The pattern by which it is attached.
    pattern: str | UnsetType = UNSET
    sharing: SharingBody | UnsetType = UNSET
    #: Of a shared one: messages above `acked` that are done, those that are out, and its consumers.
    done: int | UnsetType = UNSET
    leased: int | UnsetType = UNSET
    members: int | UnsetType = UNSET
    #: Messages that it has lost to its topic's quota.
    dropped: int = 0
    #: Of a pattern: how many topics match by now.
    topics: int | UnsetType = UNSET


class SubscriptionsView(msgspec.Struct, frozen=True):
    subscriptions: list[SubscriptionView]
    #: Ask again with this as `after`; empty: that was all.
    after: str


class SeekBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either `to` or `time`: the first message that was stored then, or later."""

    to: Start | UnsetType = UNSET
    time: Moment | UnsetType = UNSET


class Sought(msgspec.Struct, frozen=True):
    topic: str
    subscriber: str
    #: Where it stands now; 0 for a pattern.
    acked: int


class SubscriptionsParameters(msgspec.Struct, frozen=True):
    topic: TopicOrPattern
    after: Annotated[str, Meta(description="Those behind this name, in order of names.")] = ""
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


@endpoint(
    ENDPOINTS,
    "GET",
    "/v1/topics/{topic}/subscriptions",
    tag="subscriptions",
    summary="List subscriptions",
    parameters=SubscriptionsParameters,
    replies=(Reply(body=SubscriptionsView, description="A page.", example=SubscriptionsView([_VIEW], "")),),
    refusals=(errors.TopicUnknown,),
)
async def list_subscriptions(call: Call[SubscriptionsParameters, None]) -> Answer:
    """Of a topic, those by pattern too; or of a pattern."""
    topic, after, limit = call.parameters.topic, call.parameters.after, call.parameters.limit
    if is_pattern(topic):
        patterns = expect((await call.link.ask(Patterns(topic + BY_PATTERN + after, limit)))[0], PatternsReply)
        own = [info for info in patterns.patterns if info.pattern == topic]
        is_all = len(own) < len(patterns.patterns) or not patterns.after
        page = [_pattern_view(info) for info in own]
        return answer(SubscriptionsView(page, "" if is_all or not own else own[-1].subscriber))
    reply = expect((await call.link.ask(Subscriptions(topic, after, limit)))[0], SubscriptionsReply)
    return answer(SubscriptionsView([_view(info) for info in reply.subscriptions], reply.after))


@endpoint(
    ENDPOINTS,
    "PUT",
    _PATH,
    tag="subscriptions",
    summary="Subscribe",
    parameters=SubscriptionChange,
    body=SubscriptionBody,
    body_media=(JSON,),
    is_body_required=False,
    body_examples={"from the start": {"start": "earliest"}, "shared": {"sharing": {"lease_ms": 10_000}}},
    replies=(
        Reply(status=201, body=Subscribed, description="It was made.", example=_MADE),
        Reply(
            body=Subscribed,
            description="It was there before, and stands where it stood.",
            example=msgspec.structs.replace(_MADE, created=False),
        ),
    ),
    refusals=(errors.SubscriptionExists, errors.OffsetOutOfRange, errors.RangeGone, errors.Unsupported, *REFUSALS),
)
async def subscribe(call: Call[SubscriptionChange, SubscriptionBody]) -> Answer:
    """A durable subscription, and its topic where there is none: that goes with its last subscription. Harmless where
    it exists. A pattern subscribes to all topics that match, and will match; it starts at `new` or `earliest`, and
    can't be shared."""
    topic, subscriber, body = call.parameters.topic, call.parameters.subscriber, call.body
    sharing = None if body.sharing is None else Sharing(*msgspec.structs.astuple(body.sharing))
    operation = Subscribe(topic, subscriber, start_of(body.start), sharing)
    reply = expect(await perform(call, operation), SubscribeReply)
    made = Subscribed(topic, subscriber, reply.topic_id, reply.acked, reply.created)
    return answer(made, 201 if reply.created else 200)


@endpoint(
    ENDPOINTS,
    "GET",
    _PATH,
    tag="subscriptions",
    summary="Look at a subscription",
    parameters=SubscriptionParameters,
    replies=(Reply(body=SubscriptionView, description="Where it stands.", example=_VIEW),),
    refusals=(errors.TopicUnknown, errors.NotSubscribed),
)
async def show_subscription(call: Call[SubscriptionParameters, None]) -> Answer:
    """How far it is, and how far behind."""
    topic, subscriber = call.parameters.topic, call.parameters.subscriber
    if not is_pattern(topic):
        return answer(_view(await subscription_info(call.link, (topic, subscriber))))
    command = Patterns(just_before(topic + BY_PATTERN + subscriber), 1)
    page = expect((await call.link.ask(command))[0], PatternsReply).patterns
    if not page or (page[0].pattern, page[0].subscriber) != (topic, subscriber):
        raise errors.NotSubscribed(f"'{subscriber}' is not subscribed to '{topic}'")
    return answer(_pattern_view(page[0]))


@endpoint(
    ENDPOINTS,
    "DELETE",
    _PATH,
    tag="subscriptions",
    summary="Unsubscribe",
    parameters=SubscriptionChange,
    replies=(Reply(status=204, description="It is gone."),),
    refusals=(errors.TopicUnknown, errors.NotSubscribed, errors.SubscriptionExpired, *REFUSALS),
)
async def unsubscribe(call: Call[SubscriptionChange, None]) -> Answer:
    """End it. Messages that nobody else needs go with it, and so does a topic that was made by subscribing."""
    await perform(call, Unsubscribe(call.parameters.topic, call.parameters.subscriber))
    return Answer(status=204)


@endpoint(
    ENDPOINTS,
    "POST",
    _PATH + "/seek",
    tag="subscriptions",
    summary="Move a subscription",
    parameters=SubscriptionChange,
    body=SeekBody,
    body_media=(JSON,),
    body_examples={"to the start": {"to": "earliest"}, "by time": {"time": "2026-11-16T09:00:00Z"}},
    replies=(Reply(body=Sought, description="Where it stands now.", example=Sought("orders", "kitchen", 0)),),
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
    """To an offset, to `earliest` or `new`, or to a time. Its epoch rises, so that no late ack undoes it: whoever
    consumes it is told SOUGHT, once. A pattern is moved by `earliest`, `new` or time, on all of its topics."""
    topic, subscriber, body = call.parameters.topic, call.parameters.subscriber, call.body
    if (body.to is UNSET) == (body.time is UNSET):
        raise errors.Malformed("a seek has either `to` or `time`")
    if not isinstance(body.time, UnsetType):
        time_ms = milliseconds_of(body.time)
        if time_ms < 1:
            raise errors.Malformed("a time lies after 1970")
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
