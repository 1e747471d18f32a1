"""The queue's consumers: POST /consumer/register and GET /size.

Registering takes two steps, the entry in the registry and then the subscription, which decides: a crash in between
leaves a consumer without this subscription, and the repeated request makes it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework import identity
from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, endpoint
from oncemq.gateways.http.framework.state import keep
from oncemq.gateways.http.queue.registry import (
    NAMESPACE,
    check_consumer,
    check_names,
    consumer_key,
    is_consumer,
    new_id,
)
from oncemq.gateways.http.queue.replies import REFUSING, Success, succeed
from oncemq.gateways.http.v1.ownership import subscription_info
from oncemq.gateways.link import expect
from oncemq.protocol import errors
from oncemq.protocol.commands import Find, RegistrySet, Subscribe
from oncemq.protocol.replies import SubscribeReply

ENDPOINTS: list[Endpoint] = []


class QueueConsumer(Success, frozen=True, kw_only=True):
    consumer_id: Annotated[str, Meta(description="To consume with.")]
    topic: Annotated[str, Meta(description="The one that it is subscribed to now.")]
    position: Annotated[int, Meta(description="Of the first message that it will get.")]


class QueueConsumerParameters(identity.Protected, frozen=True, kw_only=True):
    topic: Annotated[str, Meta(description="A topic that exists.")]
    consumer_id: Annotated[
        str, Meta(description="An id of your own, or that of a consumer which has other topics; left out: a new one.")
    ] = ""


@endpoint(
    ENDPOINTS,
    "POST",
    "/consumer/register",
    tag="queue",
    summary="Register a consumer",
    parameters=QueueConsumerParameters,
    is_in_body=True,
    refusing=REFUSING,
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
    """It gets every message that is published from now on. An id may be registered for several topics, once for each.
    A repetition under the same key gets the same id."""
    topic, given_id = call.parameters.topic, call.parameters.consumer_id
    consumer_id = given_id or new_id(call, "consumer")
    check_names(topic, consumer_id=consumer_id)
    # A subscription would make it.
    await call.link.ask(Find(topic, 0))
    if not await is_consumer(call, consumer_id):
        with suppress(errors.RegistryConflict):
            await call.link.operate(RegistrySet(NAMESPACE, consumer_key(consumer_id), b"{}", 0))
        keep(call.state.queue.consumers, consumer_id, True)
    made = expect(await identity.perform(call, Subscribe(topic, consumer_id)), SubscribeReply)
    # An id that comes from this request's key was subscribed by this request, however long ago.
    if not made.created and (given_id or not identity.is_protected(call)):
        raise errors.ConsumerSubscribed(f"consumer '{consumer_id}' is subscribed to '{topic}' already")
    return succeed(QueueConsumer(consumer_id=consumer_id, topic=topic, position=made.acked))


class QueueSize(Success, frozen=True, kw_only=True):
    size: Annotated[int, Meta(description="Messages that this consumer has left.")]
    position: Annotated[int, Meta(description="Of the first of them, or of the next one that comes.")]


class QueueSizeParameters(msgspec.Struct, frozen=True):
    consumer_id: Annotated[str, Meta(description="From POST /consumer/register.", examples=["C1"])]
    topic: Annotated[str, Meta(description="A topic that it is subscribed to.")]


@endpoint(
    ENDPOINTS,
    "GET",
    "/size",
    tag="queue",
    summary="Count what a consumer has left",
    parameters=QueueSizeParameters,
    is_in_body=True,
    refusing=REFUSING,
    replies=(Reply(body=QueueSize, description="So many.", example=QueueSize(size=2, position=5)),),
    refusals=(errors.NameInvalid, errors.ConsumerUnknown, errors.NotSubscribed, errors.TopicUnknown),
)
async def queue_size(call: Call[QueueSizeParameters, None]) -> Answer:
    """Messages of the topic that the consumer has not consumed: those that are not confirmed count as well."""
    topic, consumer_id = call.parameters.topic, call.parameters.consumer_id
    check_names(topic, consumer_id=consumer_id)
    await check_consumer(call, consumer_id)
    found = await subscription_info(call.link, (topic, consumer_id))
    return succeed(QueueSize(size=found.lag, position=found.acked))
