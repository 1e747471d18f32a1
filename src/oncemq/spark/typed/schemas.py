"""The schemas of topics, as the broker has them. Each version is looked up once per process: versions never change."""

from __future__ import annotations

import threading
from collections.abc import Callable

from oncemq.client.internal import internal_api
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.commands import Schemas
from oncemq.protocol.replies import SchemasReply
from oncemq.protocol.schema import Schema, SchemaVersion

_PAGE = 100

_kept: dict[tuple[str, int, int], Schema] = {}
_lock = threading.Lock()


def topic_schema(client: Client, topic: str, version: int = 0) -> tuple[int, SchemaVersion]:
    """Return a topic's id and a version of its schema; 0 = the newest. Raises SchemaUnknown, TopicUnknown."""
    reply = internal_api(client).ask(Schemas(topic, version), SchemasReply)
    if not reply.versions:
        raise errors.SchemaUnknown(f"topic '{topic}' has no schema")
    return reply.topic_id, reply.versions[0]


def schema_lookup(client: Client, topic: str, topic_id: int, default: int = 0) -> Callable[[int], Schema]:
    """Return a function from a version of the topic's schema to the schema. It raises SchemaUnknown. Version 0, which
    messages from before the schema have, means version `default`, or the newest one."""
    broker_id = internal_api(client).broker_id

    def find(version: int) -> Schema:
        version = version or default
        key = (broker_id, topic_id, version)
        with _lock:
            found = _kept.get(key)
        if found is None:
            _, asked = topic_schema(client, topic, version)
            found = asked.schema
            with _lock:
                _kept[key] = found
        return found

    return find


def all_versions(client: Client, topic: str) -> list[SchemaVersion]:
    """Return all versions of a topic's schema, oldest first; none if it has no schema."""
    newest = internal_api(client).ask(Schemas(topic), SchemasReply).newest
    found: list[SchemaVersion] = []
    while len(found) < newest:
        found += internal_api(client).ask(Schemas(topic, len(found) + 1, _PAGE), SchemasReply).versions
    return found
