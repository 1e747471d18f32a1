"""The queue's consumers: POST /consumer/register and GET /size.

Registering takes two steps: the entry in the registry, then the subscription. The second one decides: after a crash
between them the consumer has no subscription, and the repeated request creates it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework import identity
from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, text_or_integer
from oncemq.gateways.http.lookups import find_subscription
from oncemq.gateways.http.queue.registry import (
    NAMESPACE,
    check_consumer,
    check_names,
    consumer_key,
    is_consumer,
    new_id,
)
from oncemq.gateways.http.queue.replies import Success, queue_endpoint, succeed
from oncemq.protocol import errors
from oncemq.protocol.commands import Find, RegistrySet, Subscribe
from oncemq.protocol.replies import SubscribeReply, expect

ENDPOINTS: list[Endpoint] = []


class QueueConsumer(Success, frozen=True, kw_only=True):
    consumer_id: Annotated[str, Meta(description="The id to consume with.")]
    topic: Annotated[str, Meta(description="The topic that it is subscribed to now.")]
    position: Annotated[int, Meta(description="The offset of the first message that it will get.")]


class QueueConsumerParameters(identity.Protected, frozen=True, kw_only=True):
    topic: Annotated[str, Meta(description="A topic that exists.")]
    consumer_id: Annotated[
        str,
        text_or_integer(
            'An id of your own, or that of a consumer of other topics. 7 and `"7"` are the same id. Default: a new id.'
        ),
    ] = ""


@queue_endpoint(
    ENDPOINTS,
    "POST",
    "/consumer/register",
    summary="Register a consumer",
    parameters=QueueConsumerParameters,
    body_examples={"a topic": {"topic": "T1"}, "an id": {"topic": "T1", "consumer_id": "C1"}},
    replies=(
        Reply(
            body=QueueConsumer,
            description="It is subscribed.",
            example=QueueConsumer(consumer_id="2c26b46b68ffc68f", topic="T1", position=0),
        ),
    ),
    refusals=(
        errors.TopicUnknown,
        errors.ConsumerSubscribed,
        errors.SubscriptionExists,
        errors.DiskFull,
        *identity.REFUSALS,
    ),
)
async def queue_register_consumer(call: Call[QueueConsumerParameters, None]) -> Answer:
    """The consumer gets every message that is published from now on. An id may be registered for several topics, once
    for each. A repetition with the same key gets the same id."""
    topic, given_id = call.parameters.topic, call.parameters.consumer_id
    consumer_id = given_id or new_id(call, "consumer")
    check_names(topic, consumer_id=consumer_id)
    # The topic must exist: subscribing would create it.
    await call.link.ask(Find(topic, 0))
    if not await is_consumer(call, consumer_id):
        with suppress(errors.RegistryConflict):
            await call.link.operate(RegistrySet(NAMESPACE, consumer_key(consumer_id), b"{}", 0))
        call.state.queue.consumers[consumer_id] = True
    made = expect(await identity.perform(call, Subscribe(topic, consumer_id)), SubscribeReply)
    # An id that was computed from this request's key was subscribed by this request, when it was sent first.
    if not made.created and (given_id or not identity.is_protected(call)):
        raise errors.ConsumerSubscribed(f"consumer '{consumer_id}' is already subscribed to '{topic}'")
    return succeed(QueueConsumer(consumer_id=consumer_id, topic=topic, position=made.acked))


class QueueSize(Success, frozen=True, kw_only=True):
    size: Annotated[int, Meta(description="How many messages this consumer has not consumed.")]
    position: Annotated[int, Meta(description="The offset of the first of them, or of the next message.")]


class QueueSizeParameters(msgspec.Struct, frozen=True):
    consumer_id: Annotated[str, text_or_integer("From POST /consumer/register.", examples=["C1"])]
    topic: Annotated[str, Meta(description="A topic that it is subscribed to.")]


@queue_endpoint(
    ENDPOINTS,
    "GET",
    "/size",
    summary="Count the messages of a consumer",
    parameters=QueueSizeParameters,
    replies=(Reply(body=QueueSize, description="The number of messages.", example=QueueSize(size=2, position=5)),),
    refusals=(errors.NameInvalid, errors.ConsumerUnknown, errors.NotSubscribed, errors.TopicUnknown),
)
async def queue_size(call: Call[QueueSizeParameters, None]) -> Answer:
    """How many messages of the topic the consumer has not consumed. Delivered messages that are not confirmed count
    too."""
    topic, consumer_id = call.parameters.topic, call.parameters.consumer_id
    check_names(topic, consumer_id=consumer_id)
    await check_consumer(call, consumer_id)
    found = await find_subscription(call.link, topic, consumer_id)
    return succeed(QueueSize(size=found.lag, position=found.acked))
