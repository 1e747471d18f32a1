"""Putting messages: one, or many together."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncemq.gateways.http.framework.endpoint import (
    ANY,
    BYTES,
    JSON,
    NDJSON,
    TEXT,
    Answer,
    Call,
    Endpoint,
    Reply,
    answer,
    endpoint,
)
from oncemq.gateways.http.framework.fields import DelayMs, DueMs, TopicName, TtlMs
from oncemq.gateways.http.framework.identity import PROTECTING, REFUSALS, Protected, is_protected, perform
from oncemq.gateways.http.v1.put_body import Batch, PutBody, batch_of
from oncemq.gateways.link import MERGED_BYTES, bytes_of, expect, make_put
from oncemq.protocol import errors
from oncemq.protocol.replies import PutReply

ENDPOINTS: list[Endpoint] = []


class PutParameters(Protected, frozen=True):
    topic: TopicName
    create: Annotated[bool, Meta(description="Make the topic where there is none; it stays.")] = False
    key: Annotated[str | UnsetType, Meta(description="The key of every message that has none of its own.")] = UNSET
    ttl_ms: TtlMs = 0
    delay_ms: DelayMs = 0
    due_ms: DueMs = 0


class Stored(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int
    #: Of the first message; the others follow without a gap. -1: they get their offsets when they are due.
    offset: int
    count: int
    #: The broker's time.
    time_ms: int
    #: For how many subscriptions it is stored.
    subscriptions: int


_EXAMPLE = Stored("orders", 281474976710657, 3, 1, 1_790_000_000_000, 1)


@endpoint(
    ENDPOINTS,
    "POST",
    "/v1/topics/{topic}/messages",
    tag="messages",
    summary="Put messages",
    parameters=PutParameters,
    body=bytes,
    body_kinds={JSON: PutBody},
    body_media=(JSON, NDJSON, TEXT, BYTES, ANY),
    body_examples={
        "one": {"value": "one pizza", "key": "table-7", "headers": {"type": "order"}},
        "many": {"messages": [{"value": "one pizza"}, {"value": {"dish": "soup"}}, {"value_base64": "/w=="}]},
        NDJSON: '{"dish": "pizza"}\n{"dish": "soup"}\n',
        TEXT: "one pizza",
        BYTES: "one pizza",
    },
    replies=(Reply(status=201, body=Stored, description="They are on the broker's disk.", example=_EXAMPLE),),
    refusals=(errors.TopicUnknown, errors.DiskFull, errors.TopicFull, errors.KeysFull, *REFUSALS),
)
async def put(call: Call[PutParameters, bytes]) -> Answer:
    """What the body is depends on its media type:

    - `application/json`: `{"value": …}`, with `key` and `headers` where wanted, or `{"messages": […]}`. A value that is
      a JSON string is stored as its text, any other value as its JSON. Bytes come as `value_base64`.
    - `application/x-ndjson`: each line is a message, stored as it is. A line that is not JSON, or is empty, refuses the
      whole body; only the end of the last line may be missing, or not.
    - any other: the body is one message.

    Messages of one request are stored together, or not at all.
    """
    parameters = call.parameters
    key = parameters.key.encode() if isinstance(parameters.key, str) else None
    batch = batch_of(call.body, call.media, key)
    if _is_plain(call, batch):
        reply = await call.link.put(parameters.topic, *batch.first, parameters.create)
    else:
        operation, payload = make_put(
            parameters.topic,
            batch.values,
            batch.keys,
            batch.headers,
            create=parameters.create,
            ttl_ms=parameters.ttl_ms,
            due_ms=_due_ms(call, parameters),
        )
        reply = expect(await perform(call, operation, payload), PutReply)
    return answer(stored(parameters.topic, reply), 201)


def _is_plain(call: Call[PutParameters, bytes], batch: Batch) -> bool:
    """One message, which may travel together with those of others."""
    parameters = call.parameters
    return (
        len(batch.values) == 1
        and not (parameters.ttl_ms or parameters.delay_ms or parameters.due_ms)
        and bytes_of(*batch.first) <= MERGED_BYTES
        and not any(name in call.headers for name in PROTECTING)
    )


def _due_ms(call: Call[Any, Any], parameters: PutParameters) -> int:
    if not parameters.delay_ms:
        return parameters.due_ms
    if parameters.due_ms:
        raise errors.Malformed("delay_ms and due_ms say the same: give one of them")
    if is_protected(call):
        # Repeated, it would be another request.
        raise errors.Malformed("with a key or a number, give due_ms in place of delay_ms: a repetition says the same")
    return int(time.time() * 1000) + parameters.delay_ms


def stored(topic: str, reply: PutReply) -> Stored:
    return Stored(topic, reply.topic_id, reply.first_offset, reply.count, reply.time_ms, reply.subscriptions)
