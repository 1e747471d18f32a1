"""The queue's next message: GET /consumer/consume, in three forms.

    plain          the first message that is not confirmed is given, and confirmed at once
    position=n     what lies below n is confirmed; message n is given and stays
    with a key     what the key before was given is confirmed; the next message is given and stays

The last two may be repeated and get the same message again. Which key was given what is in the registry (giving.py).
"""

from __future__ import annotations

import base64
import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, endpoint, header
from oncemq.gateways.http.framework.fields import WaitMs
from oncemq.gateways.http.queue.registry import check_consumer, check_names
from oncemq.gateways.http.queue.replies import REFUSING, Success, succeed
from oncemq.gateways.keyed_delivery import Giving, nothing_for, until_settled
from oncemq.gateways.subscription_reader import Reading
from oncemq.protocol import errors
from oncemq.protocol.limits import KEY_BYTES_MAX
from oncemq.protocol.message import Message
from oncemq.protocol.names import refuse_key

ENDPOINTS: list[Endpoint] = []

_POSITION_MAX = 2**53

_Encoding = Literal["text", "base64"]


class QueueMessage(Success, frozen=True, kw_only=True):
    message: Annotated[str, Meta(description="As it was published.")]
    encoding: Annotated[_Encoding, Meta(description="`base64` where the message is no UTF-8 text.")]
    position: Annotated[int, Meta(description="The message's offset in its topic.")]
    next_position: Annotated[int, Meta(description="As `position`, confirms this message and gets the next.")]


class QueueConsumeParameters(msgspec.Struct, frozen=True):
    consumer_id: Annotated[str, Meta(description="From POST /consumer/register.", examples=["C1"])]
    topic: Annotated[str, Meta(description="A topic that it is subscribed to.")]
    position: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=_POSITION_MAX,
                description="Confirm everything below, give the message at this position, and let it stay.",
            ),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    wait_ms: WaitMs = 0
    idempotency_key: Annotated[
        str,
        header(
            "Idempotency-Key",
            "In place of a position: a new key confirms what the key before was given.",
            length_max=KEY_BYTES_MAX,
        ),
    ] = ""


@endpoint(
    ENDPOINTS,
    "GET",
    "/consumer/consume",
    tag="queue",
    summary="Consume the next message",
    parameters=QueueConsumeParameters,
    is_in_body=True,
    is_changing=True,
    waits=True,
    refusing=REFUSING,
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
    """Messages come in order. An empty queue is `NOTHING_NEW`, at once or after `wait_ms`.

    Without a position or a key, a repeated request can't be told from the next one: it takes the next message, and
    the one whose reply was lost is gone. With either, a repetition gets the same message again, until a later
    request confirms it; after that it is `CONSUMED`. Use one form, not both.

    A position of before a seek is refused, once (`SOUGHT`), as is one of a topic that was deleted (`TOPIC_GONE`), by
    the gateway that gave messages before; ask GET /size where the consumer stands."""
    asked = call.parameters
    check_names(asked.topic, consumer_id=asked.consumer_id)
    is_keyed = b"idempotency-key" in call.headers
    _check_form(asked, is_keyed)
    await check_consumer(call, asked.consumer_id)
    reading = Reading(call.link, call.state, asked.topic, asked.consumer_id)
    until_s = time.monotonic() + asked.wait_ms / 1000
    while True:
        try:
            async with call.state.queue.turns.of((asked.topic, asked.consumer_id)):
                return succeed(_view(await _consume(call, reading, is_keyed)))
        except errors.NothingNew:
            left_ms = round(1000 * (until_s - time.monotonic()))
            if left_ms <= 0:
                raise
        # While it waits, others have their turn.
        await reading.wait(left_ms)


async def _consume(call: Call[QueueConsumeParameters, None], reading: Reading, is_keyed: bool) -> Message:
    asked = call.parameters
    try:
        if asked.position is not msgspec.UNSET:
            position = asked.position
            return await until_settled(reading, lambda: _at_position(reading, position), names_offsets=True)
        if is_keyed:
            giving: Giving = call.state.queue.giving
            return await until_settled(reading, lambda: giving.under_key(call.link, reading, asked.idempotency_key))
        return await until_settled(reading, lambda: _next(reading))
    except errors.Consumed as error:
        error.position = reading.acked
        raise


def _check_form(asked: QueueConsumeParameters, is_keyed: bool) -> None:
    if asked.position is not msgspec.UNSET and is_keyed:
        raise errors.Malformed("a position or an Idempotency-Key, not both")
    refusal = refuse_key(asked.idempotency_key) if is_keyed else None
    if refusal is not None:
        raise errors.from_code(refusal.code, refusal.text)


async def _next(reading: Reading) -> Message:
    while True:
        message = await reading.first()
        if message is None:
            raise nothing_for(reading)
        if await reading.ack(message.offset + 1) == message.offset + 1:
            return message


async def _at_position(reading: Reading, position: int) -> Message:
    message = await reading.confirm(position)
    if reading.acked > position:
        raise errors.Consumed(f"message {position} was confirmed; {reading.acked} is the first that is not")
    if message is None:
        raise nothing_for(reading)
    return message


def _view(message: Message) -> QueueMessage:
    encoding: _Encoding = "text"
    try:
        text = message.value.decode()
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(message.value).decode(), "base64"
    return QueueMessage(message=text, encoding=encoding, position=message.offset, next_position=message.offset + 1)
