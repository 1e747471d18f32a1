"""The queue's topics: GET and POST /topics."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework import identity
from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply
from oncemq.gateways.http.queue.registry import check_names
from oncemq.gateways.http.queue.replies import Success, queue_endpoint, succeed
from oncemq.protocol import errors
from oncemq.protocol.commands import CreateTopic, Topics
from oncemq.protocol.replies import TopicReply, TopicsReply, expect

ENDPOINTS: list[Endpoint] = []


class QueueTopics(Success, frozen=True, kw_only=True):
    topics: Annotated[list[str], Meta(description="The topics' names, sorted.")]
    after: Annotated[str, Meta(description="The `after` of the next page; empty: this is the last page.")]


class QueueTopicsParameters(msgspec.Struct, frozen=True):
    after: Annotated[str, Meta(description="List the names after this one, in their order.")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000, description="Maximum number of entries.")] = 1000


@queue_endpoint(
    ENDPOINTS,
    "GET",
    "/topics",
    summary="List topics",
    parameters=QueueTopicsParameters,
    replies=(Reply(body=QueueTopics, description="Their names.", example=QueueTopics(topics=["T1", "T2"], after="")),),
    refusals=(errors.Busy,),
)
async def queue_list_topics(call: Call[QueueTopicsParameters, None]) -> Answer:
    """All topics, in the order of their names."""
    reply = await call.link.query(Topics(call.parameters.after, call.parameters.limit), TopicsReply)
    return succeed(QueueTopics(topics=[topic.name for topic in reply.topics], after=reply.after))


class QueueTopic(Success, frozen=True, kw_only=True):
    topic: Annotated[str, Meta(description="The new topic's name.")]


class QueueTopicParameters(identity.Protected, frozen=True, kw_only=True):
    topic_name: Annotated[str, Meta(description="The new topic's name.", examples=["T1"])]


@queue_endpoint(
    ENDPOINTS,
    "POST",
    "/topics",
    summary="Create a topic",
    parameters=QueueTopicParameters,
    body_examples={"a topic": {"topic_name": "T1"}},
    replies=(Reply(body=QueueTopic, description="It was created.", example=QueueTopic(topic="T1")),),
    refusals=(errors.TopicExists, errors.DiskFull, *identity.REFUSALS),
)
async def queue_create_topic(call: Call[QueueTopicParameters, None]) -> Answer:
    """The topic is not deleted with its last consumer. If it exists, the request is refused with `TOPIC_EXISTS`; a
    repetition with the same key is not refused."""
    name = call.parameters.topic_name
    check_names(name)
    made = expect(await identity.perform(call, CreateTopic(name)), TopicReply)
    if not made.created:
        raise errors.TopicExists(f"topic '{name}' exists already")
    return succeed(QueueTopic(topic=name))
