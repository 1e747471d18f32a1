"""The schemas of topics that frames are put to and read from. A version of a schema never changes, so it is looked up
once."""

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

#: At most this many versions are kept.
_KEPT_MAX = 10_000


def require_arrow() -> None:
    """Raises MissingExtra, with the pip command, if pyarrow is not installed."""
    require("pyarrow", "a frame")


class FrameSchemas:
    """The versions that were looked up, by topic id."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._kept: dict[tuple[int, int], Schema] = {}

    def ask(self, topic: str, version: int = 0) -> Flow[tuple[int, SchemaVersion]]:
        """Return a topic's id and a version of its schema; 0 = the newest. Raises SchemaUnknown, TopicUnknown."""
        reply = yield from self._context.ask(Schemas(topic, version), SchemasReply)
        if not reply.versions:
            raise errors.SchemaUnknown(f"topic '{topic}' has no schema")
        found = reply.versions[0]
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        self._kept[reply.topic_id, found.version] = found.schema
        return reply.topic_id, found

    def find(self, topic: str, topic_id: int, version: int) -> Flow[Schema]:
        """Return a version of a topic's schema."""
        known = self._kept.get((topic_id, version)) if version else None
        if known is None:
            _, found = yield from self.ask(topic, version)
            known = found.schema
        return known

    def converter(self, version: int, columns: Sequence[str]) -> FrameConverter:
        """Return what makes tables of batches. Raises MissingExtra, and ValueError for an unknown column."""
        require_arrow()
        from oncemq.client.frames.reader import FrameConverter

        return FrameConverter(self, version, columns)
