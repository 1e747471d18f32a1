"""The queue's producers: POST /producer/register and /producer/produce.

Registering takes two steps, the topic and then the entry in the registry: a crash in between leaves a topic that the
repeated request finds.
"""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework import identity
from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, endpoint
from oncemq.gateways.http.framework.state import keep
from oncemq.gateways.http.queue.registry import NAMESPACE, ProducerEntry, check_names, new_id, producer_key, topic_of
from oncemq.gateways.http.queue.replies import REFUSING, Success, succeed
from oncemq.gateways.http.v1.ownership import just_before
from oncemq.gateways.link import Link, expect, make_put
from oncemq.protocol import errors
from oncemq.protocol.commands import CreateTopic, Find, RegistrySet, Sessions, Topics
from oncemq.protocol.replies import PutReply, SessionsReply, TopicsReply

ENDPOINTS: list[Endpoint] = []


class QueueProducer(Success, frozen=True, kw_only=True):
    producer_id: Annotated[str, Meta(description="To publish with.")]
    topic: Annotated[str, Meta(description="The one that it publishes to.")]


class QueueProducerParameters(identity.Protected, frozen=True, kw_only=True):
    topic: Annotated[str, Meta(description="The topic to publish to; it is made where there is none.")]
    producer_id: Annotated[str, Meta(description="An id of your own; left out, a new one is made.")] = ""


@endpoint(
    ENDPOINTS,
    "POST",
    "/producer/register",
    tag="queue",
    summary="Register a producer",
    parameters=QueueProducerParameters,
    is_in_body=True,
    refusing=REFUSING,
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
    """A producer's id serves one topic, for good; whoever publishes to several has an id for each. The topic stays.
    A repetition under the same key gets the same id."""
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
        # An id that comes from this request's key was made by this request, however long ago.
        if given_id or known != topic:
            raise _registered(producer_id, known or topic, topic) from None
    keep(call.state.queue.producers, producer_id, topic)
    return succeed(QueueProducer(producer_id=producer_id, topic=topic))


def _registered(producer_id: str, known: str, topic: str) -> errors.Refused:
    if known == topic:
        return errors.ProducerRegistered(f"producer '{producer_id}' is registered for '{topic}' already")
    return errors.ProducerElsewhere(f"producer '{producer_id}' is registered for '{known}', and for no other topic")


class QueueProduced(Success, frozen=True, kw_only=True):
    topic: Annotated[str, Meta(description="The topic's name.")]
    position: Annotated[int, Meta(description="The message's offset in its topic.")]
    consumers: Annotated[int, Meta(description="For how many subscribers it is stored.")]


class QueueProduceParameters(identity.Protected, frozen=True, kw_only=True):
    topic: Annotated[str, Meta(description="The topic that the producer is registered for.")]
    producer_id: Annotated[str, Meta(description="From POST /producer/register.", examples=["P1"])]
    message: Annotated[str, Meta(description="Any text; bytes in base64, with this `encoding`.", examples=["pizza"])]
    encoding: Annotated[
        Literal["text", "base64"], Meta(description="`base64`: what the message stands for is stored.")
    ] = "text"


@endpoint(
    ENDPOINTS,
    "POST",
    "/producer/produce",
    tag="queue",
    summary="Publish a message",
    parameters=QueueProduceParameters,
    is_in_body=True,
    refusing=REFUSING,
    body_examples={"a message": {"topic": "T1", "producer_id": "P1", "message": "one pizza"}},
    replies=(
        Reply(
            body=QueueProduced,
            description="It is stored, durably.",
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
        *identity.REFUSALS,
    ),
)
async def queue_produce(call: Call[QueueProduceParameters, None]) -> Answer:
    """It is kept until all who are subscribed now have consumed it. A topic that nobody is subscribed to takes no
    message (`NO_CONSUMERS`), unless it has a retention, which keeps it for readers of other kinds."""
    topic, producer_id = call.parameters.topic, call.parameters.producer_id
    check_names(topic, producer_id=producer_id)
    value = _value_of(call.parameters)
    known = await topic_of(call, producer_id)
    if known is None:
        raise errors.ProducerUnknown(f"there is no producer '{producer_id}'")
    if known != topic:
        await call.link.ask(Find(topic, 0))
        raise errors.NotRegistered(f"producer '{producer_id}' is registered for '{known}', not for '{topic}'")
    await _refuse_in_vain(call, topic)
    reply = await _put(call, topic, value)
    if reply.subscriptions:
        keep(call.state.queue.consumed, topic, True)
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
        raise errors.Malformed("message: it is not base64") from None


def _no_consumers(topic: str) -> errors.NoConsumers:
    return errors.NoConsumers(f"nobody is subscribed to '{topic}': the message was not stored")


async def _refuse_in_vain(call: Call[QueueProduceParameters, None], topic: str) -> None:
    """A put uses up a position even where nothing is stored, so where it is not known that somebody is subscribed, that
    is looked up first. What is protected may have happened already, and then gets its answer: of a number that can be
    found out, of a key it can't. Raises NoConsumers."""
    if topic in call.state.queue.consumed or call.parameters.idempotency_key:
        return
    reply = expect((await call.link.ask(Topics(just_before(topic), 1)))[0], TopicsReply)
    for info in reply.topics:
        takes = info.subscriptions or info.retain_ms or info.retain_bytes
        if info.name == topic and not takes and not await _is_decided(call):
            raise _no_consumers(topic)


async def _is_decided(call: Call[QueueProduceParameters, None]) -> bool:
    """It is a repetition, or its session has something to say about its number."""
    if not identity.is_protected(call):
        return False
    asked = call.parameters
    reply = expect((await call.link.ask(Sessions(just_before(asked.session_name), 1)))[0], SessionsReply)
    found = [session for session in reply.sessions if session.name == asked.session_name]
    return not found or found[0].epoch != asked.session_epoch or found[0].last_number >= asked.session_number


async def _put(call: Call[QueueProduceParameters, None], topic: str, value: bytes) -> PutReply:
    if not identity.is_protected(call):
        return await call.link.put(topic, value)
    operation, payload = make_put(topic, [value])
    return expect(await identity.perform(call, operation, payload), PutReply)


async def _is_kept(link: Link, topic: str, stored: PutReply) -> bool:
    """By the topic's retention, which a repetition finds when the message itself has gone. Without one, a put that
    nobody is subscribed to stores nothing."""
    reply = expect((await link.ask(Topics(just_before(topic), 1)))[0], TopicsReply)
    return any(info.topic_id == stored.topic_id and (info.retain_ms or info.retain_bytes) for info in reply.topics)
