"""Topics: list, look at, make, delete."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from oncemq import errors
from oncemq.engine.commands import Topics
from oncemq.engine.replies import TopicInfo, TopicsReply
from oncemq.gateways.http.endpoint import Answer, Call, Endpoint, Reply, answer, endpoint
from oncemq.gateways.link import expect

ENDPOINTS: list[Endpoint] = []


class TopicView(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int
    first_offset: int
    end_offset: int
    subscriptions: int
    stored_bytes: int


class TopicsView(msgspec.Struct, frozen=True):
    topics: list[TopicView]
    #: Ask again with this as `after`; empty: that was all.
    after: str


class TopicsParameters(msgspec.Struct, frozen=True):
    after: Annotated[str, Meta(description="Those behind this name, in order of names.")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000, description="So many at the most.")] = 100


_EXAMPLE = TopicsView([TopicView("orders", 17, 0, 3, 1, 120)], "")


@endpoint(
    ENDPOINTS, "GET", "/v1/topics", tag="topics", summary="List topics", parameters=TopicsParameters,
    replies=(Reply(body=TopicsView, description="A page of topics.", example=_EXAMPLE),),
    refusals=(errors.NameInvalid,),
)
async def list_topics(call: Call[TopicsParameters, None]) -> Answer:
    """A page of them, in order of their names."""
    parameters = call.parameters
    reply = expect((await call.link.ask(Topics(parameters.after, parameters.limit)))[0], TopicsReply)
    return answer(TopicsView([_view(topic) for topic in reply.topics], reply.after))


def _view(info: TopicInfo) -> TopicView:
    return TopicView(
        info.name, info.topic_id, info.first_offset, info.end_offset, info.subscriptions, info.stored_bytes
    )
