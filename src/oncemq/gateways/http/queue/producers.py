"""The queue's producers: POST /producer/register and /producer/produce.

Registering takes two steps: the topic, then the entry in the registry. After a crash between them, the repeated request
finds the topic.
"""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from oncemq.client.gateway_api import make_put
from oncemq.gateways.http.framework import identity
from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, text_or_integer
from oncemq.gateways.http.lookups import find_session, find_topic
from oncemq.gateways.http.queue.registry import NAMESPACE, ProducerEntry, check_names, new_id, producer_key, topic_of
from oncemq.gateways.http.queue.replies import Success, queue_endpoint, succeed
from oncemq.gateways.link import Link
from oncemq.protocol import errors
from oncemq.protocol.commands import CreateTopic, Find, RegistrySet
from oncemq.protocol.replies import PutReply, expect

ENDPOINTS: list[Endpoint] = []


class QueueProducer(Success, frozen=True, kw_only=True):
    producer_id: Annotated[str, Meta(description="The id to publish with.")]
    topic: Annotated[str, Meta(description="The topic that it publishes to.")]


class QueueProducerParameters(identity.Protected, frozen=True, kw_only=True):
    topic: Annotated[str, Meta(description="The topic to publish to. It is created if it does not exist.")]
    producer_id: Annotated[
        str, text_or_integer('An id of your own. 7 and `"7"` are the same id. Default: a new id.')
    ] = ""


@queue_endpoint(
    ENDPOINTS,
    "POST",
    "/producer/register",
    summary="Register a producer",
    parameters=QueueProducerParameters,
    body_examples={"a topic": {"topic": "T1"}, "an id": {"topic": "T1", "producer_id": "P1"}},
    replies=(
        Reply(
            body=QueueProducer,
            description="It may publish.",
            example=QueueProducer(producer_id="8f434346648f6b96", topic="T1"),
        ),
    ),
    refusals=(errors.ProducerRegistered, errors.ProducerElsewhere, errors.DiskFull, *identity.REFUSALS),
)
async def queue_register_producer(call: Call[QueueProducerParameters, None]) -> Answer:
    """A producer's id is for one topic, and this never changes; to publish to several topics, register one id for each.
    The topic is not deleted with its last consumer. A repetition with the same key gets the same id."""
    topic, given_id = call.parameters.topic, call.parameters.producer_id
    producer_id = given_id or new_id(call, "producer")
    check_names(topic, producer_id=producer_id)
    known = await topic_of(call, producer_id)
    if known is not None and (known != topic or not identity.is_protected(call)):
        raise _registered(producer_id, known, topic)
    with suppress(errors.TopicExists):
        await call.link.operate(CreateTopic(topic))
    value = msgspec.json.encode(ProducerEntry(topic))
    try:
        await identity.perform(call, RegistrySet(NAMESPACE, producer_key(producer_id), value, 0))
    except errors.RegistryConflict:
        known = await topic_of(call, producer_id)
        # An id that was computed from this request's key was registered by this request, when it was sent first.
        if given_id or known != topic:
            raise _registered(producer_id, known or topic, topic) from None
    call.state.queue.producers[producer_id] = topic
    return succeed(QueueProducer(producer_id=producer_id, topic=topic))


def _registered(producer_id: str, known: str, topic: str) -> errors.Refused:
    if known == topic:
        return errors.ProducerRegistered(f"producer '{producer_id}' is already registered for '{topic}'")
    return errors.ProducerElsewhere(
        f"producer '{producer_id}' is registered for '{known}'; it can't be registered for another topic"
    )


class QueueProduced(Success, frozen=True, kw_only=True):
    topic: Annotated[str, Meta(description="The topic's name.")]
    position: Annotated[int, Meta(description="The message's offset in its topic.")]
    consumers: Annotated[int, Meta(description="How many subscriptions it is stored for.")]


class QueueProduceParameters(identity.Protected, frozen=True, kw_only=True):
    topic: Annotated[str, Meta(description="The topic that the producer is registered for.")]
    producer_id: Annotated[str, text_or_integer("From POST /producer/register.", examples=["P1"])]
    message: Annotated[str, Meta(description="Any text, or bytes in base64 with that `encoding`.", examples=["pizza"])]
    encoding: Annotated[Literal["text", "base64"], Meta(description="`base64`: the decoded bytes are stored.")] = "text"


@queue_endpoint(
    ENDPOINTS,
    "POST",
    "/producer/produce",
    summary="Publish a message",
    parameters=QueueProduceParameters,
    body_examples={"a message": {"topic": "T1", "producer_id": "P1", "message": "one pizza"}},
    replies=(
        Reply(
            body=QueueProduced,
            description="It is stored durably.",
            example=QueueProduced(topic="T1", position=0, consumers=3),
        ),
    ),
    refusals=(
        errors.ProducerUnknown,
        errors.NotRegistered,
        errors.TopicUnknown,
        errors.NoConsumers,
        errors.DiskFull,
        errors.TopicFull,
        errors.SchemaMismatch,
        errors.SchemaRequired,
        errors.SchemaUnknown,
        *identity.REFUSALS,
    ),
)
async def queue_produce(call: Call[QueueProduceParameters, None]) -> Answer:
    """The message is kept until all consumers that are subscribed now have consumed it. A topic without subscriptions
    takes no messages (`NO_CONSUMERS`), unless it has a retention, which keeps them for other readers."""
    topic, producer_id = call.parameters.topic, call.parameters.producer_id
    check_names(topic, producer_id=producer_id)
    value = _value_of(call.parameters)
    known = await topic_of(call, producer_id)
    if known is None:
        raise errors.ProducerUnknown(f"there is no producer '{producer_id}'")
    if known != topic:
        await call.link.ask(Find(topic, 0))
        raise errors.NotRegistered(f"producer '{producer_id}' is registered for '{known}', not for '{topic}'")
    await _refuse_without_consumers(call, topic)
    reply = await _put(call, topic, value)
    if reply.subscriptions:
        call.state.queue.consumed[topic] = True
    elif not await _is_kept(call.link, topic, reply):
        call.state.queue.consumed.pop(topic, None)
        raise _no_consumers(topic)
    return succeed(QueueProduced(topic=topic, position=reply.first_offset, consumers=reply.subscriptions))


def _value_of(asked: QueueProduceParameters) -> bytes:
    if asked.encoding == "text":
        return asked.message.encode()
    try:
        return base64.b64decode(asked.message, validate=True)
    except (binascii.Error, ValueError):
        raise errors.Malformed("message: it is not valid base64") from None


def _no_consumers(topic: str) -> errors.NoConsumers:
    return errors.NoConsumers(f"'{topic}' has no subscriptions: the message was not stored")


async def _refuse_without_consumers(call: Call[QueueProduceParameters, None], topic: str) -> None:
    """A put uses an offset even if nothing is stored. So the gateway looks up whether the topic has subscriptions,
    unless it knows that it has. A request with a key or a number may have happened already, and then must get its
    answer: for a number this can be looked up, for a key it can't. Raises NoConsumers."""
    if topic in call.state.queue.consumed or call.parameters.idempotency_key:
        return
    info = await find_topic(call.link, topic)
    if info is None or info.subscriptions or info.retain_ms or info.retain_bytes:
        return
    if not await _is_decided(call):
        raise _no_consumers(topic)


async def _is_decided(call: Call[QueueProduceParameters, None]) -> bool:
    """Return whether the broker must answer the request: it is a repetition, or its session or number is wrong."""
    if not identity.is_protected(call):
        return False
    asked = call.parameters
    session = await find_session(call.link, asked.session_name)
    return session is None or session.epoch != asked.session_epoch or session.last_number >= asked.session_number


async def _put(call: Call[QueueProduceParameters, None], topic: str, value: bytes) -> PutReply:
    if not identity.is_protected(call):
        return await call.link.put(topic, value)
    operation, payload = make_put(topic, False, [value])
    return expect(await identity.perform(call, operation, payload), PutReply)


async def _is_kept(link: Link, topic: str, stored: PutReply) -> bool:
    """Return whether the topic's retention keeps the message. A repetition finds the retention even if the message
    itself was deleted meanwhile. Without retention, a put on a topic without subscriptions stores nothing."""
    info = await find_topic(link, topic)
    return info is not None and info.topic_id == stored.topic_id and bool(info.retain_ms or info.retain_bytes)
