"""Schemas for tests of the engine."""

from __future__ import annotations

from oncemq.protocol import commands
from oncemq.protocol.schema import Schema, parse_fields

#: Each is compatible with the ones before it.
TEXTS = [
    "id: int64 not null",
    "id: int64 not null, name: string",
    "id: int64 not null, name: string, tags: list<string>",
]


def schema(text: str) -> Schema:
    return Schema(parse_fields(text), definition=text)


SCHEMAS = [schema(text) for text in TEXTS]


def checked(version: int, topic_id: int = 0, count: int = 1, size: int = 100) -> commands.Envelope:
    """Return the envelope of messages that were checked."""
    return commands.Envelope(count, size, 0, schema_version=version, schema_topic_id=topic_id)
