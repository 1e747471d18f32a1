"""Schemas of topics, for those who manage them: put a version, list versions, check a change. `Client` documents the
calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import msgspec

from oncemq.protocol import commands, errors, replies
from oncemq.protocol.message import Message
from oncemq.protocol.schema import DefinitionKind, Encoding, Rule, Schema, SchemaVersion, incompatibilities
from oncemq.protocol.schema.definitions.parse import parse_definition

if TYPE_CHECKING:
    from oncemq.client.context import ClientContext
    from oncemq.client.runtime.flow import Flow

#: Who checks values.
Check = Literal["none", "client", "broker"]
#: What a schema is defined by: text, a FileDescriptorSet, a `pyarrow.Schema`, or a schema.
Definition = str | bytes | Schema | Any

T = TypeVar("T")

_PAGE = 100


class TopicSchema(msgspec.Struct, frozen=True):
    """The schema of a topic: its versions, the oldest first, and its settings."""

    topic: str
    topic_id: int
    compatibility: Rule
    check: Check
    versions: tuple[SchemaVersion, ...]

    @property
    def newest(self) -> SchemaVersion:
        """The newest version."""
        return self.versions[-1]


def schema_of(
    definition: Definition,
    kind: DefinitionKind | None = None,
    encoding: Encoding | None = None,
    message: str = "",
) -> Schema:
    """Return the schema of a definition. Raises SchemaInvalid or MissingExtra."""
    if isinstance(definition, Schema):
        return definition
    if isinstance(definition, str | bytes):
        return parse_definition(definition, kind, encoding=encoding, message=message)
    if type(definition).__module__.partition(".")[0] == "pyarrow":
        # Only here, because pyarrow is optional; it is installed, since the caller has a schema of it.
        from oncemq.protocol.schema.arrow import from_arrow

        return from_arrow(definition)
    raise TypeError(f"a definition is text, bytes, a pyarrow.Schema or a Schema, not {type(definition).__name__}")


class SchemaAdmin:
    def __init__(self, context: ClientContext) -> None:
        self._context = context

    def put(self, topic: str, schema: Schema | None, rule: Rule | None, check: Check | None) -> Flow[int]:
        """Add a version, or change the settings. Returns the version."""
        operation = commands.PutSchema(topic, schema, rule or "", check or "")
        reply = yield from self._context.call(operation, replies.SchemaReply)
        yield from self._context.schemas.refresh(topic)
        return reply.version

    def find(self, topic: str) -> Flow[TopicSchema | None]:
        """Return all versions; None = the topic has no schema. Raises TopicUnknown."""
        versions: list[SchemaVersion] = []
        while True:
            first = len(versions) + 1
            try:
                reply = yield from self._context.ask(commands.Schemas(topic, first, _PAGE), replies.SchemasReply)
            except errors.SchemaUnknown:
                return None
            versions += reply.versions
            if not versions:
                return None
            if len(versions) >= reply.newest:
                rule, check = cast(Rule, reply.rule), cast(Check, reply.check)
                return TopicSchema(topic, reply.topic_id, rule, check, tuple(versions))

    def problems(self, topic: str, schema: Schema, rule: Rule | None) -> Flow[list[str]]:
        """Return what would break if a schema became the next version."""
        known = yield from self.find(topic)
        if known is None:
            return []
        return incompatibilities(known.versions, schema, rule or known.compatibility)

    def decode(self, message: Message, as_type: type[T]) -> Flow[T]:
        """Return the value of a message as an object, after its schema was looked up."""
        return self._context.schemas.decode(message, as_type)
