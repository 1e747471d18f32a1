"""The queue's next message: GET /consumer/consume, in three forms.

    plain          the first message that is not confirmed is given, and confirmed at once
    position=n     what lies below n is confirmed; message n is given and stays
    with a key     what the key before was given is confirmed; the next message is given and stays

The last two may be repeated and get the same message again. Which key was given what is in the registry, before it
is answered: `consume/<consumer>/<topic's id>`, {"keys": [[key, offset], …]}, the latest at the end. A crash before that
is harmless: the message is still the first one, and the repeated request finds it.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from oncemq import errors
from oncemq.engine.commands import RegistrySet
from oncemq.engine.names import refuse_key
from oncemq.engine.replies import RegistryReply
from oncemq.gateways.http.endpoint import Answer, Call, Endpoint, Reply, endpoint, header
from oncemq.gateways.http.queue_reading import Reading
from oncemq.gateways.http.queue_registry import NAMESPACE, check_consumer, check_names, entry_of
from oncemq.gateways.http.queue_replies import REFUSING, Success, succeed
from oncemq.gateways.http.queue_state import GivenKeys
from oncemq.gateways.http.state import keep
from oncemq.gateways.link import expect
from oncemq.message import Message

ENDPOINTS: list[Endpoint] = []

#: Keys that are remembered per consumer and topic.
_KEYS_MAX = 16
#: Another gateway consumes under the same id, or the subscription was moved: from the start again, so often, and after
#: a pause of any length up to this, which grows.
_TRIES = 8
_PAUSE_S = 0.005
_POSITION_MAX = 2**53

T = TypeVar("T")
_Encoding = Literal["text", "base64"]


class _Entry(msgspec.Struct, frozen=True):
    keys: tuple[tuple[str, int], ...]


_decode_entry = msgspec.json.Decoder(_Entry).decode


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
                ge=0, le=_POSITION_MAX,
                description="Confirm everything below, give the message at this position, and let it stay.",
            ),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    idempotency_key: Annotated[
        str,
        header(
            "Idempotency-Key", "In place of a position: a new key confirms what the key before was given.",
            max_length=512,
        ),
    ] = ""


@endpoint(
    ENDPOINTS, "GET", "/consumer/consume", tag="queue", summary="Consume the next message",
    parameters=QueueConsumeParameters, is_in_body=True, is_changing=True, refusing=REFUSING,
    replies=(
        Reply(
            body=QueueMessage, description="The message.",
            example=QueueMessage(message="one pizza", encoding="text", position=5, next_position=6),
        ),
    ),
    refusals=(
        errors.NothingNew, errors.NameInvalid, errors.ConsumerUnknown, errors.NotSubscribed, errors.TopicUnknown,
        errors.Consumed, errors.OffsetOutOfRange, errors.SubscriptionExpired, errors.KindMismatch, errors.Fenced,
        errors.Sought, errors.RegistryConflict, errors.DiskFull,
    ),
)
async def queue_consume(call: Call[QueueConsumeParameters, None]) -> Answer:
    """Messages come in order. An empty queue is `NOTHING_NEW`.

    Without a position or a key, a repeated request can't be told from the next one: it takes the next message, and
    the one whose reply was lost is gone. With either, a repetition gets the same message again, until a later
    request confirms it; after that it is `CONSUMED`. Use one form, not both."""
    asked = call.parameters
    check_names(asked.topic, consumer_id=asked.consumer_id)
    is_keyed = b"idempotency-key" in call.headers
    _check_form(asked, is_keyed)
    await check_consumer(call, asked.consumer_id)
    async with call.state.queue.turns.of((asked.topic, asked.consumer_id)):
        reading = Reading(call, asked.topic, asked.consumer_id)
        if asked.position is not msgspec.UNSET:
            position = asked.position
            message = await _until_settled(reading, lambda: _at_position(reading, position))
        elif is_keyed:
            message = await _until_settled(reading, lambda: _under_key(call, reading, asked.idempotency_key))
        else:
            message = await _until_settled(reading, lambda: _next(reading))
    return succeed(_view(message))


def _check_form(asked: QueueConsumeParameters, is_keyed: bool) -> None:
    if asked.position is not msgspec.UNSET and is_keyed:
        raise errors.Malformed("a position or an Idempotency-Key, not both")
    refusal = refuse_key(asked.idempotency_key) if is_keyed else None
    if refusal is not None:
        raise errors.from_code(refusal.code, refusal.text)


async def _until_settled(reading: Reading, consume: Callable[[], Awaitable[T]]) -> T:
    """An ack belongs to what was read under the same epoch, so that whatever moves the subscription meanwhile makes
    it all begin again."""
    tries = 0
    while True:
        try:
            return await consume()
        except (errors.Fenced, errors.Sought, errors.TopicGone, errors.RegistryConflict):
            tries += 1
            if tries == _TRIES:
                raise
        reading.forget()
        await asyncio.sleep(random.uniform(0, _PAUSE_S * (tries - 1)))


async def _next(reading: Reading) -> Message:
    while True:
        message = await reading.first()
        if message is None:
            raise _nothing(reading)
        if await reading.ack(message.offset + 1) == message.offset + 1:
            return message


async def _at_position(reading: Reading, position: int) -> Message:
    message = await reading.confirm(position)
    if reading.acked > position:
        raise errors.Consumed(f"message {position} was confirmed; {reading.acked} is the first that is not")
    if message is None:
        raise _nothing(reading)
    return message


async def _under_key(call: Call[QueueConsumeParameters, None], reading: Reading, key: str) -> Message:
    message = await reading.first()
    given = await _given(call, reading)
    known = given.offset_of(key)
    if known is not None:
        if message is not None and message.offset == known:
            return message
        raise errors.Consumed(f"the message of key '{key}', at {known}, was confirmed by a later request")
    if message is not None and message.offset == given.last_offset:
        message = await reading.confirm(message.offset + 1)
    if message is None:
        raise _nothing(reading)
    await _give(call, reading, given, (key, message.offset))
    return message


async def _given(call: Call[QueueConsumeParameters, None], reading: Reading) -> GivenKeys:
    cached = call.state.queue.given
    known: GivenKeys | None = cached.get((reading.consumer_id, reading.topic_id))
    if known is None:
        entry = await entry_of(call.link, _given_key(reading))
        known = GivenKeys(_decode_entry(entry.value).keys, entry.version) if entry is not None else GivenKeys()
        keep(cached, (reading.consumer_id, reading.topic_id), known)
    return known


async def _give(
    call: Call[QueueConsumeParameters, None], reading: Reading, given: GivenKeys, latest: tuple[str, int]
) -> None:
    """Raises RegistryConflict: another gateway was quicker."""
    keys = (*given.keys, latest)[-_KEYS_MAX:]
    # Whatever becomes of it, what was known before may be wrong.
    call.state.queue.given.pop((reading.consumer_id, reading.topic_id), None)
    value = msgspec.json.encode(_Entry(keys))
    written = await call.link.operate(RegistrySet(NAMESPACE, _given_key(reading), value, given.version))
    known = GivenKeys(keys, expect(written, RegistryReply).version)
    keep(call.state.queue.given, (reading.consumer_id, reading.topic_id), known)


def _given_key(reading: Reading) -> str:
    return f"consume/{reading.consumer_id}/{reading.topic_id}"


def _nothing(reading: Reading) -> errors.NothingNew:
    return errors.NothingNew(f"there is no message for '{reading.consumer_id}' on '{reading.topic}'")


def _view(message: Message) -> QueueMessage:
    encoding: _Encoding = "text"
    try:
        text = message.value.decode()
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(message.value).decode(), "base64"
    return QueueMessage(message=text, encoding=encoding, position=message.offset, next_position=message.offset + 1)
