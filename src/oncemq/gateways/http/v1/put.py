"""Put messages: one, or several together."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncemq.client.gateway_api import Times, make_put
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
from oncemq.gateways.put_batcher import BATCH_BYTES_MAX, bytes_of
from oncemq.protocol import errors
from oncemq.protocol.replies import PutReply, expect

ENDPOINTS: list[Endpoint] = []


class PutParameters(Protected, frozen=True):
    topic: TopicName
    create: Annotated[bool, Meta(description="Create the topic if it does not exist.")] = False
    key: Annotated[str | UnsetType, Meta(description="The key of all messages without a key of their own.")] = UNSET
    ttl_ms: TtlMs = 0
    delay_ms: DelayMs = 0
    due_ms: DueMs = 0


class Stored(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int
    #: The offset of the first message; the others follow without gaps. -1: they get their offsets when they are due.
    offset: int
    count: int
    #: The broker's time.
    time_ms: int
    #: How many subscriptions it is stored for.
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
    replies=(Reply(status=201, body=Stored, description="They are stored durably.", example=_EXAMPLE),),
    refusals=(
        errors.TopicUnknown,
        errors.DiskFull,
        errors.TopicFull,
        errors.KeysFull,
        errors.SchemaMismatch,
        errors.SchemaRequired,
        errors.SchemaUnknown,
        *REFUSALS,
    ),
)
async def put(call: Call[PutParameters, bytes]) -> Answer:
    """The media type says what the body is:

    - `application/json`: `{"value": …}`, with optional `key` and `headers`, or `{"messages": […]}`. A value that is a
      JSON string is stored as its text, any other value as its JSON. Bytes are given as `value_base64`.
    - `application/x-ndjson`: each line is a message, stored as it is. If one line is empty or not JSON, the whole body
      is refused. The newline at the end of the last line is optional.
    - any other: the body is one message.

    The messages of one request are stored together, or not at all.
    """
    parameters = call.parameters
    key = parameters.key.encode() if isinstance(parameters.key, str) else None
    batch = batch_of(call.body, call.media, key)
    if _is_plain(call, batch):
        reply = await call.link.put(parameters.topic, *batch.first, parameters.create)
    else:
        times = Times(parameters.ttl_ms, _due_ms(call, parameters))
        operation, payload = make_put(
            parameters.topic, parameters.create, batch.values, batch.keys, batch.headers, times
        )
        reply = expect(await perform(call, operation, payload), PutReply)
    return answer(
        Stored(parameters.topic, reply.topic_id, reply.first_offset, reply.count, reply.time_ms, reply.subscriptions),
        201,
    )


def _is_plain(call: Call[PutParameters, bytes], batch: Batch) -> bool:
    """Return whether this is one message that may share a batch with those of other callers."""
    parameters = call.parameters
    return (
        len(batch.values) == 1
        and not (parameters.ttl_ms or parameters.delay_ms or parameters.due_ms)
        and bytes_of(*batch.first) <= BATCH_BYTES_MAX
        and not any(name in call.headers for name in PROTECTING)
    )


def _due_ms(call: Call[Any, Any], parameters: PutParameters) -> int:
    if not parameters.delay_ms:
        return parameters.due_ms
    if parameters.due_ms:
        raise errors.Malformed("delay_ms and due_ms exclude each other: use one of them")
    if is_protected(call):
        # A repetition would be another request, since its time would be another one.
        raise errors.Malformed(
            "with a key or a number, use due_ms instead of delay_ms: a repetition must have the same content"
        )
    return int(time.time() * 1000) + parameters.delay_ms
