"""The schemas of topics that frames are put to and read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncemq.protocol import errors
from oncemq.protocol.commands import Schemas
from oncemq.protocol.replies import SchemasReply
from oncemq.protocol.schema.extras import require

if TYPE_CHECKING:
    from oncemq.client.context import ClientContext
    from oncemq.client.frames.reader import FrameConverter
    from oncemq.client.runtime.flow import Flow
    from oncemq.protocol.schema import Schema, SchemaVersion


def require_arrow() -> None:
    """Raises MissingExtra, with the pip command, if pyarrow is not installed."""
    require("pyarrow", "a frame")


class FrameSchemas:
    """The versions that frames need."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    def ask(self, topic: str, version: int = 0) -> Flow[tuple[int, SchemaVersion]]:
        """Return a topic's id and a version of its schema; 0 = the newest. Raises SchemaUnknown, TopicUnknown."""
        reply = yield from self._context.ask(Schemas(topic, version), SchemasReply)
        if not reply.versions:
            raise errors.SchemaUnknown(f"topic '{topic}' has no schema")
        return reply.topic_id, reply.versions[0]

    def find(self, topic: str, topic_id: int, version: int) -> Flow[Schema]:
        """Return a version of a topic's schema; 0 = the newest. Raises SchemaUnknown if the topic is another one."""
        if version:
            return (yield from self._context.schemas.load(topic, topic_id, version))
        _, newest = yield from self.ask(topic)
        return newest.schema

    def converter(self, version: int, columns: Sequence[str]) -> FrameConverter:
        """Return what makes tables of batches. Raises MissingExtra, and ValueError for an unknown column."""
        require_arrow()
        from oncemq.client.frames.reader import FrameConverter

        return FrameConverter(self, version, columns)
