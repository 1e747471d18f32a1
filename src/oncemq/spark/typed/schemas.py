"""The schemas of topics, as the broker has them."""

from __future__ import annotations

from collections.abc import Callable

from oncemq.client.internal import internal_api
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.commands import Schemas
from oncemq.protocol.replies import SchemasReply
from oncemq.protocol.schema import Schema, SchemaVersion

_PAGE = 100


def topic_schema(client: Client, topic: str, version: int = 0) -> tuple[int, SchemaVersion]:
    """Return a topic's id and a version of its schema; 0 = the newest. Raises SchemaUnknown, TopicUnknown."""
    reply = internal_api(client).ask(Schemas(topic, version), SchemasReply)
    if not reply.versions:
        raise errors.SchemaUnknown(f"topic '{topic}' has no schema")
    return reply.topic_id, reply.versions[0]


def schema_lookup(client: Client, topic: str, topic_id: int, default: int = 0) -> Callable[[int], Schema]:
    """Return a function from a version of the topic's schema to the schema, which it looks up once. It raises
    SchemaUnknown, or TopicGone if the topic was deleted. Version 0, which messages from before the schema have, means
    version `default`, or the newest one."""
    known: dict[int, Schema] = {}

    def find(version: int) -> Schema:
        version = version or default
        if version not in known:
            known[version] = _schema_of(client, topic, topic_id, version)
        return known[version]

    return find


def _schema_of(client: Client, topic: str, topic_id: int, version: int) -> Schema:
    try:
        found_id, found = topic_schema(client, topic, version)
    except errors.TopicUnknown as error:
        raise errors.TopicGone(error.text) from None
    if found_id != topic_id:
        raise errors.TopicGone(f"topic '{topic}' was deleted and created again")
    return found.schema


def all_versions(client: Client, topic: str) -> list[SchemaVersion]:
    """Return all versions of a topic's schema, oldest first; none if it has no schema."""
    newest = internal_api(client).ask(Schemas(topic), SchemasReply).newest
    found: list[SchemaVersion] = []
    while len(found) < newest:
        found += internal_api(client).ask(Schemas(topic, len(found) + 1, _PAGE), SchemasReply).versions
    return found
