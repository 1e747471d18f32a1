"""Topics: list, show, create, delete."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, answer, endpoint
from oncemq.gateways.http.framework.fields import INTEGER_MAX, PageParameters, TopicName, struct_from
from oncemq.gateways.http.framework.identity import REFUSALS, Protected, perform
from oncemq.gateways.http.lookups import find_topic
from oncemq.protocol import errors
from oncemq.protocol.commands import REFUSE, CreateTopic, DeleteTopic, Topics
from oncemq.protocol.names import refuse_topic_name
from oncemq.protocol.replies import TopicInfo, TopicReply, TopicsReply, expect

ENDPOINTS: list[Endpoint] = []
_endpoint = partial(endpoint, ENDPOINTS, tag="topics")

Amount = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]


class TopicView(msgspec.Struct, frozen=True):
    topic: str
    #: A topic that is deleted and created again gets another id.
    topic_id: int
    #: It is not deleted with its last subscription.
    stays: bool
    #: The first offset that is still stored.
    first_offset: int
    #: The offset that the next message will get.
    end_offset: int
    stored_bytes: int
    subscriptions: int
    #: How many messages are not due yet.
    delayed: int
    retain_ms: int
    retain_bytes: int
    quota_bytes: int
    overflow: str


class TopicsView(msgspec.Struct, frozen=True):
    topics: list[TopicView]
    #: The `after` of the next page; empty: this is the last page.
    after: str


class TopicParameters(msgspec.Struct, frozen=True):
    topic: TopicName


class TopicChange(Protected, frozen=True):
    topic: TopicName


class TopicSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: How long to keep messages after all subscriptions have acked them.
    retain_ms: Amount = 0
    #: How many bytes of messages to keep after all subscriptions have acked them.
    retain_bytes: Amount = 0
    #: Maximum number of bytes to store; 0: unlimited.
    quota_bytes: Amount = 0
    #: What happens to puts at the quota.
    overflow: Literal["refuse", "drop", "expire"] = "refuse"
    #: If the topic exists with other settings, change them.
    alter: bool = False


class TopicMade(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int
    #: False: it existed before.
    created: bool


_TOPIC = TopicView("orders", 281474976710657, True, 0, 3, 120, 1, 0, 0, 0, 0, REFUSE)
_MADE = TopicMade("orders", 281474976710657, True)


@_endpoint(
    "GET",
    "/v1/topics",
    summary="List topics",
    parameters=PageParameters,
    replies=(Reply(body=TopicsView, description="A page of topics.", example=TopicsView([_TOPIC], "")),),
    refusals=(errors.Busy,),
)
async def list_topics(call: Call[PageParameters, None]) -> Answer:
    """A page of topics, in the order of their names. If the broker has users, a page may have fewer topics than
    `limit`, or none, although others follow: `after` says so."""
    parameters = call.parameters
    reply = await call.link.query(Topics(parameters.after, parameters.limit), TopicsReply)
    return answer(TopicsView([_view(topic) for topic in reply.topics], reply.after))


@_endpoint(
    "GET",
    "/v1/topics/{topic}",
    summary="Show a topic",
    parameters=TopicParameters,
    replies=(Reply(body=TopicView, description="The topic.", example=_TOPIC),),
    refusals=(errors.TopicUnknown, errors.NameInvalid),
)
async def show_topic(call: Call[TopicParameters, None]) -> Answer:
    """The topic's offsets, size and settings."""
    name = call.parameters.topic
    refusal = refuse_topic_name(name)
    if refusal is not None:
        raise errors.NameInvalid(refusal.text)
    topic = await find_topic(call.link, name)
    if topic is None:
        raise errors.TopicUnknown(f"there is no topic '{name}'")
    return answer(_view(topic))


@_endpoint(
    "PUT",
    "/v1/topics/{topic}",
    summary="Create a topic",
    parameters=TopicChange,
    body=TopicSettings,
    is_body_required=False,
    body_examples={"a day": {"retain_ms": 86_400_000}},
    replies=(
        Reply(status=201, body=TopicMade, description="It was created.", example=_MADE),
        Reply(body=TopicMade, description="It existed before.", example=msgspec.structs.replace(_MADE, created=False)),
    ),
    refusals=(errors.TopicExists, errors.Unsupported, *REFUSALS),
)
async def make_topic(call: Call[TopicChange, TopicSettings]) -> Answer:
    """Creates a topic that is not deleted with its last subscription. If it exists with the same settings, nothing
    changes; with other settings the request is refused (TOPIC_EXISTS), unless `alter` is true."""
    name, body = call.parameters.topic, call.body
    operation = CreateTopic(name, body.retain_ms, body.retain_bytes, body.quota_bytes, body.overflow, body.alter)
    reply = expect(await perform(call, operation), TopicReply)
    return answer(TopicMade(name, reply.topic_id, reply.created), 201 if reply.created else 200)


@_endpoint(
    "DELETE",
    "/v1/topics/{topic}",
    summary="Delete a topic",
    parameters=TopicChange,
    replies=(Reply(status=204, description="It is deleted."),),
    refusals=(errors.TopicUnknown, *REFUSALS),
)
async def delete_topic(call: Call[TopicChange, None]) -> Answer:
    """Deletes a topic with its messages and its subscriptions. Its consumers are refused with TOPIC_GONE."""
    await perform(call, DeleteTopic(call.parameters.topic))
    return Answer(status=204)


def _view(info: TopicInfo) -> TopicView:
    return struct_from(TopicView, info, topic=info.name)
