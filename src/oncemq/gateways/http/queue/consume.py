"""The queue's next message: GET /consumer/consume, in three forms.

    plain          returns the first message that is not confirmed, and confirms it at once
    position=n     confirms all messages below n; returns message n, which stays
    with a key     confirms the message of the key before; returns the next message, which stays

The last two may be repeated and return the same message again. The registry records which key got which message
(keyed_delivery.py).
"""

from __future__ import annotations

import base64
import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, header, text_or_integer
from oncemq.gateways.http.framework.fields import WaitMs
from oncemq.gateways.http.queue.registry import check_consumer, check_names
from oncemq.gateways.http.queue.replies import Success, queue_endpoint, succeed
from oncemq.gateways.http.state import state_of
from oncemq.gateways.keyed_delivery import nothing_new
from oncemq.gateways.subscription_reader import SubscriptionReader, retry_when_stale
from oncemq.protocol import errors
from oncemq.protocol.limits import KEY_BYTES_MAX
from oncemq.protocol.message import Message
from oncemq.protocol.names import refuse_key

ENDPOINTS: list[Endpoint] = []

_POSITION_MAX = 2**53

_Encoding = Literal["text", "base64"]


class QueueMessage(Success, frozen=True, kw_only=True):
    message: Annotated[str, Meta(description="The message as it was published.")]
    encoding: Annotated[_Encoding, Meta(description="`base64` if the message is not UTF-8 text.")]
    position: Annotated[int, Meta(description="The message's offset in its topic.")]
    next_position: Annotated[
        int, Meta(description="The `position` that confirms this message and returns the next one.")
    ]


class QueueConsumeParameters(msgspec.Struct, frozen=True):
    consumer_id: Annotated[str, text_or_integer("From POST /consumer/register.", examples=["C1"])]
    topic: Annotated[str, Meta(description="A topic that it is subscribed to.")]
    position: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=_POSITION_MAX,
                description="Confirm all messages below, and return the message at this position, which stays.",
            ),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    wait_ms: WaitMs = 0
    idempotency_key: Annotated[
        str,
        header(
            "Idempotency-Key",
            "Instead of a position: a new key confirms the message of the key before.",
            length_max=KEY_BYTES_MAX,
        ),
    ] = ""


@queue_endpoint(
    ENDPOINTS,
    "GET",
    "/consumer/consume",
    summary="Consume the next message",
    parameters=QueueConsumeParameters,
    is_changing=True,
    waits=True,
    replies=(
        Reply(
            body=QueueMessage,
            description="The message.",
            example=QueueMessage(message="one pizza", encoding="text", position=5, next_position=6),
        ),
    ),
    refusals=(
        errors.NothingNew,
        errors.NameInvalid,
        errors.ConsumerUnknown,
        errors.NotSubscribed,
        errors.TopicUnknown,
        errors.TopicGone,
        errors.Consumed,
        errors.OffsetOutOfRange,
        errors.SubscriptionExpired,
        errors.KindMismatch,
        errors.Fenced,
        errors.Sought,
        errors.RegistryConflict,
        errors.DiskFull,
    ),
)
async def queue_consume(call: Call[QueueConsumeParameters, None]) -> Answer:
    """Returns messages in order. An empty queue is refused with `NOTHING_NEW`, at once or after `wait_ms`.

    Without a position or a key, a repeated request can't be told from the next one: it consumes the next message, and
    a message whose response was lost is lost. With either of them, a repetition returns the same message, until a
    later request confirms it; after that it is refused with `CONSUMED`. Use one form, not both.

    A position from before a seek is refused once (`SOUGHT`), and so is a position in a deleted topic (`TOPIC_GONE`), by
    a gateway that has delivered messages before. GET /size tells the consumer's position."""
    asked = call.parameters
    check_names(asked.topic, consumer_id=asked.consumer_id)
    is_keyed = b"idempotency-key" in call.headers
    _check_form(asked, is_keyed)
    await check_consumer(call, asked.consumer_id)
    state = state_of(call)
    reader = SubscriptionReader(state.subscriptions, asked.topic, asked.consumer_id)
    until_s = time.monotonic() + asked.wait_ms / 1000
    while True:
        try:
            async with state.queue.lock.hold((asked.topic, asked.consumer_id)):
                return succeed(_view(await _consume(call, reader, is_keyed)))
        except errors.NothingNew:
            left_ms = round(1000 * (until_s - time.monotonic()))
            if left_ms <= 0:
                raise
        # It waits without the lock, so that other requests can proceed.
        await reader.wait(left_ms)


async def _consume(call: Call[QueueConsumeParameters, None], reader: SubscriptionReader, is_keyed: bool) -> Message:
    asked = call.parameters
    try:
        if asked.position is not msgspec.UNSET:
            position = asked.position
            return await retry_when_stale(reader, lambda: _at_position(reader, position), names_offsets=True)
        if is_keyed:
            delivery = state_of(call).queue.delivery
            return await retry_when_stale(reader, lambda: delivery.deliver(reader, asked.idempotency_key))
        return await retry_when_stale(reader, lambda: _next(reader))
    except errors.Consumed as error:
        error.position = reader.acked
        raise


def _check_form(asked: QueueConsumeParameters, is_keyed: bool) -> None:
    if asked.position is not msgspec.UNSET and is_keyed:
        raise errors.Malformed("use a position or an Idempotency-Key, not both")
    refusal = refuse_key(asked.idempotency_key) if is_keyed else None
    if refusal is not None:
        raise errors.from_code(refusal.code, refusal.text)


async def _next(reader: SubscriptionReader) -> Message:
    while True:
        message = await reader.first()
        if message is None:
            raise nothing_new(reader)
        if await reader.ack(message.offset + 1) == message.offset + 1:
            return message


async def _at_position(reader: SubscriptionReader, position: int) -> Message:
    message = await reader.confirm(position)
    if reader.acked > position:
        raise errors.Consumed(f"message {position} is confirmed already; the first one that is not is {reader.acked}")
    if message is None:
        raise nothing_new(reader)
    return message


def _view(message: Message) -> QueueMessage:
    encoding: _Encoding = "text"
    try:
        text = message.value.decode()
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(message.value).decode(), "base64"
    return QueueMessage(message=text, encoding=encoding, position=message.offset, next_position=message.offset + 1)
