"""Schemas of topics: list versions, add one, see what a change would break."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Reply, answer, endpoint
from oncemq.gateways.http.framework.fields import INTEGER_MAX, TopicName
from oncemq.gateways.http.framework.identity import REFUSALS, Protected, perform
from oncemq.protocol import errors
from oncemq.protocol.commands import PutSchema, Schemas
from oncemq.protocol.limits import SCHEMA_BYTES_MAX
from oncemq.protocol.replies import SchemaReply, SchemasReply, expect
from oncemq.protocol.schema import Schema, SchemaVersion, fields_to_builtins, incompatibilities
from oncemq.protocol.schema.definitions.parse import parse_definition

ENDPOINTS: list[Endpoint] = []
_endpoint = partial(endpoint, ENDPOINTS, tag="schemas")

_PAGE = 100

Kind = Literal["fields", "json-schema", "avro", "protobuf"]
Rule = Literal["none", "backward", "forward", "full"]


class SchemaParameters(msgspec.Struct, frozen=True):
    topic: TopicName
    #: The first version to return.
    version: Annotated[int, Meta(ge=1, le=INTEGER_MAX)] = 1
    #: Maximum number of versions.
    limit: Annotated[int, Meta(ge=1, le=1000)] = _PAGE


class SchemaChange(Protected, frozen=True):
    topic: TopicName


class SchemaCheck(msgspec.Struct, frozen=True):
    topic: TopicName


Text = Annotated[str, Meta(max_length=SCHEMA_BYTES_MAX)]


class SchemaCheckBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: Fields (`id: int64 not null, price: decimal(10,2)`), JSON Schema, Avro or Protobuf.
    definition: Text
    #: The language of the definition; found out if it is missing.
    kind: Kind | None = None
    #: How values are encoded. By default avro and protobuf for definitions in these languages, otherwise json.
    encoding: Literal["json", "avro", "protobuf"] | None = None
    #: The name of the Protobuf message.
    message: str = ""
    #: The rule to check; by default that of the topic.
    compatibility: Rule | None = None


class SchemaBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: Fields (`id: int64 not null, price: decimal(10,2)`), JSON Schema, Avro or Protobuf. Without a definition, only
    #: the settings change.
    definition: Text | None = None
    #: The language of the definition; found out if it is missing.
    kind: Kind | None = None
    #: How values are encoded. By default avro and protobuf for definitions in these languages, otherwise json.
    encoding: Literal["json", "avro", "protobuf"] | None = None
    #: The name of the Protobuf message.
    message: str = ""
    #: What new versions may change. By default as it is, and `backward` at first.
    compatibility: Rule | None = None
    #: Who checks values. By default as it is, and `client` at first.
    check: Literal["none", "client", "broker"] | None = None


class SchemaMade(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int
    #: The version that the schema has.
    version: int
    #: False: the topic had this schema before, or only settings were changed.
    created: bool


class SchemaProblems(msgspec.Struct, frozen=True):
    topic: str
    #: What would break; empty: nothing.
    problems: list[str]


class VersionView(msgspec.Struct, frozen=True):
    version: int
    #: When it was stored, in milliseconds since 1970.
    time_ms: int
    #: How values are encoded.
    encoding: str
    #: The fields, with the types of Arrow.
    fields: list[dict[str, Any]]
    #: The language of the definition.
    kind: str
    #: The definition as it was given.
    definition: str
    #: The name of the Protobuf message.
    message: str


class SchemasView(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int
    #: The newest version; 0: the topic has no schema.
    newest: int
    #: What new versions may change.
    compatibility: str
    #: Who checks values.
    check: str
    #: The oldest first.
    versions: list[VersionView]


_TEXT = "id: int64 not null, price: decimal(10,2)"
_FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "int64", "nullable": False},
    {"name": "price", "type": "decimal(10,2)"},
]
_VERSION = VersionView(1, 1_785_489_000_000, "json", _FIELDS, "fields", _TEXT, "")
_LIST = SchemasView("orders", 281474976710657, 1, "backward", "client", [_VERSION])
_MADE = SchemaMade("orders", 281474976710657, 1, True)
_BREAKS = SchemaProblems(
    "orders", ["id: a reader expects string, and values are int64: new readers can't read old values (version 1)"]
)


@_endpoint(
    "GET",
    "/v1/topics/{topic}/schemas",
    summary="List versions of a schema",
    parameters=SchemaParameters,
    replies=(Reply(body=SchemasView, description="A page of versions, the oldest first.", example=_LIST),),
    refusals=(errors.TopicUnknown, errors.NameInvalid, errors.SchemaUnknown),
)
async def list_schemas(call: Call[SchemaParameters, None]) -> Answer:
    """The versions of the topic's schema from `version` on, and its settings. A topic without a schema has the newest
    version 0."""
    parameters = call.parameters
    reply = await call.link.query(Schemas(parameters.topic, parameters.version, parameters.limit), SchemasReply)
    versions = [_view(each) for each in reply.versions]
    return answer(SchemasView(parameters.topic, reply.topic_id, reply.newest, reply.rule, reply.check, versions))


@_endpoint(
    "PUT",
    "/v1/topics/{topic}/schemas",
    summary="Add a version of a schema",
    parameters=SchemaChange,
    body=SchemaBody,
    body_examples={
        "fields": {"definition": _TEXT, "compatibility": "full"},
        "settings": {"check": "broker"},
    },
    replies=(
        Reply(status=201, body=SchemaMade, description="It is the newest version.", example=_MADE),
        Reply(
            body=SchemaMade,
            description="The topic has this schema already, or only settings were changed.",
            example=msgspec.structs.replace(_MADE, created=False),
        ),
    ),
    refusals=(
        errors.TopicUnknown,
        errors.SchemaInvalid,
        errors.SchemaIncompatible,
        errors.SchemaUnknown,
        errors.LimitReached,
        errors.TooLarge,
        errors.Unsupported,
        *REFUSALS,
    ),
)
async def put_schema(call: Call[SchemaChange, SchemaBody]) -> Answer:
    """Gives a topic a schema, or adds a version to it. From the first version on, the topic accepts only messages that
    match a version. A version that breaks the rule `compatibility` is refused (SCHEMA_INCOMPATIBLE). A schema that the
    topic has already keeps its number."""
    topic, body = call.parameters.topic, call.body
    schema = await asyncio.to_thread(_parse, body, body.definition) if body.definition is not None else None
    operation = PutSchema(topic, schema, body.compatibility or "", body.check or "")
    reply = expect(await perform(call, operation), SchemaReply)
    await call.link.schemas.refresh(topic)
    made = SchemaMade(topic, reply.topic_id, reply.version, reply.created)
    return answer(made, 201 if reply.created else 200)


def _parse(body: SchemaBody | SchemaCheckBody, definition: str) -> Schema:
    return parse_definition(definition, body.kind, encoding=body.encoding, message=body.message)


@_endpoint(
    "POST",
    "/v1/topics/{topic}/schemas/check",
    summary="Check a version of a schema",
    parameters=SchemaCheck,
    body=SchemaCheckBody,
    body_examples={"fields": {"definition": "id: string"}},
    replies=(Reply(body=SchemaProblems, description="What would break.", example=_BREAKS),),
    refusals=(errors.TopicUnknown, errors.SchemaInvalid, errors.NameInvalid),
)
async def check_schema(call: Call[SchemaCheck, SchemaCheckBody]) -> Answer:
    """Returns what would break if the definition became the next version, under the topic's rule or the given one.
    Nothing is changed."""
    topic, body = call.parameters.topic, call.body
    schema = await asyncio.to_thread(_parse, body, body.definition)
    # The query of one version says whether the topic exists, and which rule it has.
    reply = await call.link.query(Schemas(topic), SchemasReply)
    known = await call.link.schemas.refresh(topic)
    rule: Any = body.compatibility or reply.rule or "backward"
    problems = await asyncio.to_thread(incompatibilities, known.versions, schema, rule)
    return answer(SchemaProblems(topic, problems))


def _view(each: SchemaVersion) -> VersionView:
    schema = each.schema
    fields = fields_to_builtins(schema.fields)
    return VersionView(
        each.version, each.time_ms, schema.encoding, fields, schema.definition_kind, schema.definition, schema.message
    )
