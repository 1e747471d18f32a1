"""The queue's producers: POST /producer/register and /producer/produce.

Registering takes two steps, the topic and then the entry in the registry: a crash in between leaves a topic that the
repeated request finds.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from oncemq import errors
from oncemq.engine.commands import CreateTopic, Find, Read, RegistrySet
from oncemq.engine.replies import GetReply, PutReply
from oncemq.gateways.http import identity
from oncemq.gateways.http.endpoint import Answer, Call, Endpoint, Reply, endpoint
from oncemq.gateways.http.queue_registry import (
    NAMESPACE,
    ProducerEntry,
    check_names,
    new_id,
    producer_key,
    topic_of,
)
from oncemq.gateways.http.queue_replies import REFUSING, Success, succeed
from oncemq.gateways.http.state import keep
from oncemq.gateways.link import Link, expect, make_put

ENDPOINTS: list[Endpoint] = []


class QueueProducer(Success, frozen=True, kw_only=True):
    producer_id: Annotated[str, Meta(description="To publish with.")]
    topic: Annotated[str, Meta(description="The one that it publishes to.")]


class QueueProducerParameters(identity.Protected, frozen=True, kw_only=True):
    topic: Annotated[str, Meta(description="The topic to publish to; it is made where there is none.")]
    producer_id: Annotated[str, Meta(description="An id of your own; left out, a new one is made.")] = ""


@endpoint(
    ENDPOINTS, "POST", "/producer/register", tag="queue", summary="Register a producer",
    parameters=QueueProducerParameters, is_in_body=True, refusing=REFUSING,
    body_examples={"a topic": {"topic": "T1"}, "an id": {"topic": "T1", "producer_id": "P1"}},
    replies=(
        Reply(
            body=QueueProducer, description="It may publish.",
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
    message: Annotated[str, Meta(description="Any text.", examples=["one pizza"])]


@endpoint(
    ENDPOINTS, "POST", "/producer/produce", tag="queue", summary="Publish a message",
    parameters=QueueProduceParameters, is_in_body=True, refusing=REFUSING,
    body_examples={"a message": {"topic": "T1", "producer_id": "P1", "message": "one pizza"}},
    replies=(
        Reply(
            body=QueueProduced, description="It is stored, durably.",
            example=QueueProduced(topic="T1", position=0, consumers=3),
        ),
    ),
    refusals=(
        errors.ProducerUnknown, errors.NotRegistered, errors.TopicUnknown, errors.NoConsumers, errors.DiskFull,
        errors.TopicFull,
        *identity.REFUSALS,
    ),
)
async def queue_produce(call: Call[QueueProduceParameters, None]) -> Answer:
    """It is kept until all who are subscribed now have consumed it. A topic that nobody is subscribed to takes no
    message (`NO_CONSUMERS`), unless it has a retention, which keeps it for readers of other kinds."""
    topic, producer_id = call.parameters.topic, call.parameters.producer_id
    check_names(topic, producer_id=producer_id)
    known = await topic_of(call, producer_id)
    if known is None:
        raise errors.ProducerUnknown(f"there is no producer '{producer_id}'")
    if known != topic:
        await call.link.ask(Find(topic, 0))
        raise errors.NotRegistered(f"producer '{producer_id}' is registered for '{known}', not for '{topic}'")
    reply = await _put(call, topic, call.parameters.message.encode())
    if not reply.subscriptions and not await _is_kept(call.link, topic, reply):
        raise errors.NoConsumers(f"nobody is subscribed to '{topic}': the message was not stored")
    return succeed(QueueProduced(topic=topic, position=reply.first_offset, consumers=reply.subscriptions))


async def _put(call: Call[QueueProduceParameters, None], topic: str, value: bytes) -> PutReply:
    if not identity.is_protected(call):
        return await call.link.put(topic, value)
    operation, payload = make_put(topic, [value])
    return expect(await identity.perform(call, operation, payload), PutReply)


async def _is_kept(link: Link, topic: str, stored: PutReply) -> bool:
    """By the topic's retention. Without one, a put that nobody is subscribed to stores nothing."""
    try:
        reply = (await link.ask(Read(topic, stored.first_offset, 1, 0, stored.topic_id)))[0]
    except (errors.RangeGone, errors.OffsetOutOfRange, errors.TopicGone):
        return False
    return bool(expect(reply, GetReply).batches)
