"""Reading messages: open and get of subscriptions with one owner; read of topics."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncemq.gateways.http.framework.endpoint import BYTES, JSON, NDJSON, Answer, Call, Endpoint, Reply, answer, endpoint
from oncemq.gateways.http.framework.fields import (
    BytesMax,
    Epoch,
    Id,
    Limit,
    Offset,
    Start,
    SubscriberName,
    TopicName,
    WaitMs,
    start_of,
    struct_from,
)
from oncemq.gateways.http.framework.identity import REFUSALS, perform
from oncemq.gateways.http.v1.consume import GetRequest, fetch
from oncemq.gateways.http.v1.ownership import refuse_pattern
from oncemq.gateways.http.v1.rendering import (
    MessageView,
    accepted_media,
    decode_messages,
    lines_of,
    raw_headers,
    view_of,
)
from oncemq.gateways.http.v1.subscriptions import SubscriptionChange
from oncemq.protocol import errors
from oncemq.protocol.commands import Open, Read
from oncemq.protocol.message import Message
from oncemq.protocol.replies import GetReply, OpenReply, expect

ENDPOINTS: list[Endpoint] = []

Header = tuple[bytes, bytes]


class Opened(msgspec.Struct, frozen=True):
    topic: str
    subscriber: str
    #: 0 for a pattern.
    topic_id: int
    #: Send it with gets and acks: they are refused once another consumer has opened the subscription.
    epoch: int
    #: All offsets below are acked; 0 for a pattern.
    acked: int
    shared: bool


class GetParameters(msgspec.Struct, frozen=True):
    topic: TopicName
    subscriber: SubscriberName
    position: Annotated[
        Offset | UnsetType, Meta(description="Where to read. Default: the first message that is not acked.")
    ] = UNSET
    ack: Annotated[Offset | UnsetType, Meta(description="First ack all offsets below this one.")] = UNSET
    epoch: Epoch = 0
    limit: Limit = 100
    bytes_max: BytesMax = 2**20
    wait_ms: WaitMs = 0


class Messages(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int
    epoch: int
    #: Where this response starts: a get with this position returns the same messages.
    position: int
    #: Where to continue. It may lie after the last message, if the messages between them have expired.
    next_position: int
    #: All offsets below are acked.
    acked: int
    #: The offset that the topic's next message will get.
    end_offset: int
    #: How many messages the subscription has lost to its topic's quota so far.
    dropped: int
    messages: list[MessageView]


class ReadParameters(msgspec.Struct, frozen=True):
    topic: TopicName
    position: Annotated[Start, Meta(description="Where to read: an offset, `earliest` or `new`.")] = "earliest"
    topic_id: Annotated[Id | UnsetType, Meta(description="The topic must have this id.")] = UNSET
    limit: Limit = 100
    bytes_max: BytesMax = 2**20
    wait_ms: WaitMs = 0


class ReadMessages(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int
    position: int
    next_position: int
    #: The first offset that is still stored.
    first_offset: int
    end_offset: int
    messages: list[MessageView]


_PATH = "/v1/topics/{topic}/subscriptions/{subscriber}"
_MESSAGE = MessageView(3, 1_790_000_000_000, "1000000000001-3", "one pizza")
_GOT = Messages("orders", 281474976710657, 2, 3, 4, 3, 4, 0, [_MESSAGE])
_READ = ReadMessages("orders", 281474976710657, 3, 4, 0, 4, [_MESSAGE])
_POSITION_HEADERS = {
    "OnceMQ-Position": "Where this response starts.",
    "OnceMQ-Next-Position": "Where to continue.",
    "OnceMQ-End-Offset": "The offset that the topic's next message will get.",
}
_SUBSCRIPTION_HEADERS = {
    "OnceMQ-Epoch": "The subscription's epoch.",
    "OnceMQ-Acked": "All offsets below are acked.",
}
_MESSAGE_HEADERS = {
    "OnceMQ-Offset": "The message's offset.",
    "OnceMQ-Time": "When it was stored.",
    "OnceMQ-Idempotency-Key": "The same at every delivery, and different from that of any other message.",
    "OnceMQ-Key": "Its key, percent-encoded.",
    "OnceMQ-Headers": "Its headers, encoded like a query.",
}
CONSUMING = (
    errors.TopicUnknown,
    errors.TopicGone,
    errors.NotSubscribed,
    errors.SubscriptionExpired,
    errors.KindMismatch,
    errors.Fenced,
    errors.Sought,
    errors.OffsetOutOfRange,
    errors.RangeGone,
    errors.Unsupported,
    errors.NameInvalid,
)


@endpoint(
    ENDPOINTS,
    "POST",
    _PATH + "/open",
    tag="consuming",
    summary="Become the owner",
    parameters=SubscriptionChange,
    replies=(Reply(body=Opened, description="You own it now.", example=Opened("orders", "kitchen", 17, 2, 3, False)),),
    refusals=(errors.TopicUnknown, errors.NotSubscribed, errors.SubscriptionExpired, *REFUSALS),
)
async def open_subscription(call: Call[SubscriptionChange, None]) -> Answer:
    """The subscription's epoch rises: the owner until now is refused from here on (FENCED). A shared subscription has
    no owner; then only its epoch is returned."""
    topic, subscriber = call.parameters.topic, call.parameters.subscriber
    reply = expect(await perform(call, Open(topic, subscriber)), OpenReply)
    shared = reply.sharing is not None
    return answer(Opened(topic, subscriber, reply.topic_id, reply.epoch, reply.acked, shared))


@endpoint(
    ENDPOINTS,
    "GET",
    _PATH + "/messages",
    tag="consuming",
    summary="Get messages",
    parameters=GetParameters,
    waits=True,
    is_changing=True,
    replies=(
        Reply(
            body=Messages,
            media=(JSON, NDJSON, BYTES),
            description="The messages.",
            example=_GOT,
            headers=_POSITION_HEADERS | _SUBSCRIPTION_HEADERS | _MESSAGE_HEADERS,
        ),
        Reply(
            status=204,
            description="There is no message (with `Accept: application/octet-stream`).",
            headers=_POSITION_HEADERS | _SUBSCRIPTION_HEADERS,
        ),
    ),
    refusals=CONSUMING,
)
async def get(call: Call[GetParameters, None]) -> Answer:
    """A get moves nothing, unless `ack` acks offsets: a loop that sends the last response's `next_position` as `ack`
    gets each message once. A get that is repeated with its `position` returns the same messages.

    Without `epoch` the gateway owns the subscription for you, and takes it back from other consumers. With the epoch of
    POST …/open it takes nothing from anybody: once another consumer has opened it, the get is refused (FENCED).

    After a seek, a get that names earlier offsets is refused once (SOUGHT); a get without offsets starts at the new
    position.

    `Accept` chooses the form: `application/json` is one object, `application/x-ndjson` is one line per message, with
    the positions in headers; `application/octet-stream` is one message as it is, or 204.
    """
    parameters = call.parameters
    media = accepted_media(call.headers.get(b"accept"))
    request = GetRequest(
        1 if media == BYTES else parameters.limit,
        parameters.bytes_max,
        _given(parameters.position),
        _given(parameters.ack),
        parameters.wait_ms,
    )
    got = await fetch(call, (parameters.topic, parameters.subscriber), parameters.epoch, request)
    if media == JSON:
        views = [view_of(message) for message in got.messages]
        return answer(struct_from(Messages, got, topic=parameters.topic, messages=views))
    headers = _position_headers(got.position, got.next_position, got.end_offset)
    headers += [(b"oncemq-epoch", b"%d" % got.epoch), (b"oncemq-acked", b"%d" % got.acked)]
    return _plain_answer(media, got.messages, headers)


@endpoint(
    ENDPOINTS,
    "GET",
    "/v1/topics/{topic}/messages",
    tag="messages",
    summary="Read a topic",
    parameters=ReadParameters,
    waits=True,
    replies=(
        Reply(
            body=ReadMessages,
            media=(JSON, NDJSON, BYTES),
            description="The stored messages.",
            example=_READ,
            headers=_POSITION_HEADERS | _MESSAGE_HEADERS,
        ),
        Reply(
            status=204,
            description="There is no message (with `Accept: application/octet-stream`).",
            headers=_POSITION_HEADERS,
        ),
    ),
    refusals=(
        errors.TopicUnknown,
        errors.TopicGone,
        errors.OffsetOutOfRange,
        errors.RangeGone,
        errors.Unsupported,
    ),
)
async def read(call: Call[ReadParameters, None]) -> Answer:
    """Reads what is still stored, without a subscription. It moves nothing, and it ignores times to live. `Accept`
    chooses the form, as for a get of a subscription."""
    parameters = call.parameters
    refuse_pattern(parameters.topic)
    media = accepted_media(call.headers.get(b"accept"))
    limit = 1 if media == BYTES else parameters.limit
    topic_id = 0 if isinstance(parameters.topic_id, UnsetType) else parameters.topic_id
    bytes_max = parameters.bytes_max if limit > 1 else 1
    command = Read(parameters.topic, start_of(parameters.position), bytes_max, parameters.wait_ms, topic_id)
    raw_reply, payloads = await call.link.wait(command)
    reply = expect(raw_reply, GetReply)
    messages, is_cut = decode_messages(parameters.topic, reply, payloads, limit)
    next_position = messages[-1].offset + 1 if is_cut else reply.next_position
    position = messages[0].offset if messages else next_position
    if media != JSON:
        return _plain_answer(media, messages, _position_headers(position, next_position, reply.end_offset))
    views = [view_of(message) for message in messages]
    return answer(
        ReadMessages(parameters.topic, reply.topic_id, position, next_position, reply.acked, reply.end_offset, views)
    )


def _given(offset: int | UnsetType) -> int | None:
    return None if isinstance(offset, UnsetType) else offset


def _position_headers(position: int, next_position: int, end_offset: int) -> list[Header]:
    return [
        (b"oncemq-position", b"%d" % position),
        (b"oncemq-next-position", b"%d" % next_position),
        (b"oncemq-end-offset", b"%d" % end_offset),
    ]


def _plain_answer(media: str, messages: list[Message], headers: list[Header]) -> Answer:
    if media == NDJSON:
        return Answer(lines_of(messages), 200, NDJSON, tuple(headers))
    if not messages:
        return Answer(status=204, headers=tuple(headers))
    return Answer(messages[0].value, 200, BYTES, (*headers, *raw_headers(messages[0])))
