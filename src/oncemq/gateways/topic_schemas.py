"""The schemas of topics, as a gateway needs them: callers put raw values, and the gateway checks them.

What goes out under the gateway's own number is sent unchecked first, unless the topic is known to have a schema: a
topic without one costs nothing. What goes out under a caller's key or number is looked up first, because a refusal
would use up that number. It claims the lowest version that its values match, so that the caller's repetition is the
same command, whichever versions were added meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from oncemq.client.gateway_api import STALE_SCHEMA, KnownSchema, claim_payloads, known_of, topics_of
from oncemq.protocol import errors
from oncemq.protocol.commands import Operation, Schemas
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import SchemasReply

Ask = Callable[[Schemas], Awaitable[SchemasReply]]
Claimed = tuple[Operation, tuple[Frame, ...]]

_KEPT_MAX = 10_000
_PAGE = 100
_NO_SCHEMAS = (errors.TopicUnknown, errors.SchemaUnknown, errors.Malformed, errors.Unsupported, errors.NameInvalid)


class GatewaySchemas:
    """What a gateway knows of the schemas of topics."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: dict[str, KnownSchema] = {}

    def find(self, topic: str) -> KnownSchema | None:
        return self._known.get(topic)

    def is_typed(self, topic: str) -> bool:
        """Whether the topic is known to have a schema that values must match."""
        known = self._known.get(topic)
        return known is not None and known.is_required

    async def refresh(self, topic: str) -> KnownSchema:
        """Look up all versions of a topic's schema."""
        known = KnownSchema(0)
        try:
            while True:
                reply = await self._ask(Schemas(topic, len(known.versions) + 1, _PAGE))
                known = known_of(reply, known.versions)
                if len(known.versions) >= reply.newest:
                    break
        except _NO_SCHEMAS:
            pass
        if len(self._known) >= _KEPT_MAX:
            self._known.clear()
        self._known[topic] = known
        return known

    async def claim(self, operation: Operation, payloads: Sequence[Frame], *, is_identified: bool) -> Claimed:
        """Check the payloads of an operation by what is known. For one that a caller's key or number identifies, the
        topics are looked up first. Raises SchemaMismatch."""
        topics = topics_of(operation)
        if is_identified:
            for topic in topics:
                if topic not in self._known:
                    await self.refresh(topic)
        try:
            return claim_payloads(operation, payloads, self.find, lowest=is_identified)
        except errors.SchemaMismatch:
            if not await self._has_changed(topics):
                raise
        return claim_payloads(operation, payloads, self.find, lowest=is_identified)

    async def _has_changed(self, topics: set[str]) -> bool:
        has_changed = False
        for topic in topics:
            known = self._known.get(topic)
            if known is not None:
                has_changed = not known.is_same(await self.refresh(topic)) or has_changed
        return has_changed

    async def heard(self, operation: Operation, error: errors.OnceMQError) -> bool:
        """Return whether an operation may succeed now that its topics were looked up again, after it was refused."""
        if not isinstance(error, STALE_SCHEMA):
            return False
        for topic in topics_of(operation):
            await self.refresh(topic)
        return True
