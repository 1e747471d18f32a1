"""The schemas of topics that a client puts to: looked up when they are needed, and kept.

A topic without a schema costs nothing: a value is sent unchecked first, unless the topic is known to have a schema. If
the broker refuses it because of a schema, the schema is looked up, the value is checked, and sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from oncemq.client.core.commands.pending import Pending
from oncemq.client.producer.encoding import Claim
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Until
from oncemq.client.runtime.rpc import ask
from oncemq.client.schemas.claims import RAW, KnownSchema, checked, claim_payloads
from oncemq.protocol import errors
from oncemq.protocol.commands import CHECK_NONE, Schemas, Stage
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import SchemasReply

if TYPE_CHECKING:
    from oncemq.client.runtime.driver import Driver
    from oncemq.client.runtime.flow import Flow
    from oncemq.protocol.schema import Schema

#: The broker's answers that say that a schema is not known, or not any more.
STALE = (errors.SchemaRequired, errors.SchemaUnknown)
#: What a broker without schemas answers.
_NO_SCHEMAS = (errors.TopicUnknown, errors.Malformed, errors.Unsupported, errors.NameInvalid)
#: At most this many topics are kept.
_KEPT_MAX = 10_000
#: How long an outbox waits for a broker that may be away.
_SOON_MS = 500

T = TypeVar("T")


class TopicSchemas:
    """What a client knows of the schemas of topics."""

    def __init__(self, driver: Driver, on_known: Callable[[str, KnownSchema], None]) -> None:
        """`on_known` is called whenever a topic was looked up."""
        self._driver = driver
        self._on_known = on_known
        self._known: dict[str, KnownSchema] = {}
        #: By topic id and version. They never change.
        self._versions: dict[tuple[int, int], Schema] = {}
        self._pending: dict[str, Pending] = {}

    def find(self, topic: str) -> KnownSchema | None:
        """Return what is known of a topic; None: it was not looked up."""
        return self._known.get(topic)

    def find_version(self, topic_id: int, version: int) -> Schema | None:
        """Return a version that was looked up."""
        return self._versions.get((topic_id, version))

    def ready(self, topic: str) -> Flow[KnownSchema]:
        """Look a topic up, unless it is known."""
        return self._known.get(topic) or (yield from self.refresh(topic))

    def refresh(self, topic: str) -> Flow[KnownSchema]:
        """Look a topic up."""
        try:
            reply = yield from ask(self._driver, Schemas(topic), SchemasReply)
        except _NO_SCHEMAS:
            return self._keep(topic, KnownSchema(0))
        return self._learn(topic, reply)

    def load(self, topic: str, topic_id: int, version: int) -> Flow[Schema]:
        """Return one version of a topic's schema. Raises SchemaUnknown if the topic has none, or is another one."""
        known = self._versions.get((topic_id, version))
        if known is not None:
            return known
        reply = yield from ask(self._driver, Schemas(topic, version), SchemasReply)
        if reply.topic_id != topic_id or not reply.versions:
            raise errors.SchemaUnknown(f"the schema of '{topic}' has no version {version}: the topic was deleted since")
        self._versions[topic_id, version] = reply.versions[0].schema
        return reply.versions[0].schema

    def decode(self, message: Message, as_type: type[T]) -> Flow[T]:
        """Return the value of a message as an object, after the schema that it was written with was looked up."""
        if message.schema is None and message.schema_version:
            schema = yield from self.load(message.topic, message.topic_id, message.schema_version)
            message = msgspec.structs.replace(message, schema=schema)
        return message.decode(as_type)

    def _learn(self, topic: str, reply: SchemasReply) -> KnownSchema:
        for each in reply.versions:
            self._versions[reply.topic_id, each.version] = each.schema
        is_required = bool(reply.versions) and reply.check != CHECK_NONE
        return self._keep(topic, KnownSchema(reply.topic_id, reply.versions, is_required))

    def _keep(self, topic: str, known: KnownSchema) -> KnownSchema:
        if len(self._known) >= _KEPT_MAX:
            self._known.clear()
        self._known[topic] = known
        self._on_known(topic, known)
        return known

    # Values.

    def checked(self, topic: str, value: object) -> tuple[bytes, Claim]:
        """Return a value as it is put, by what is known of its topic. Raises SchemaMismatch."""
        return checked(topic, value, self._known.get(topic))

    def needs(self, topic: str, value: object) -> bool:
        """Whether a value can't be put before the schema of its topic is known."""
        return not isinstance(value, RAW) and topic not in self._known

    def retrying(self, topics: Iterable[str], attempt: Callable[[], Flow[T]], *, is_known: bool = False) -> Flow[T]:
        """Run a flow that puts to these topics. If it fails because what is known of them is out of date, look them up
        and run it again. With `is_known` they are looked up first."""
        topics = list(topics)
        if is_known:
            for topic in topics:
                yield from self.ready(topic)
        before = {topic: self._known.get(topic) for topic in topics}
        try:
            return (yield from attempt())
        except STALE:
            for topic in topics:
                yield from self.refresh(topic)
        except errors.SchemaMismatch:
            if not (yield from self._has_changed(before)):
                raise
        return (yield from attempt())

    def _has_changed(self, before: dict[str, KnownSchema | None]) -> Flow[bool]:
        """Look topics up again. Return whether one has another schema than before."""
        has_changed = False
        for topic, known in before.items():
            if known is not None:
                has_changed = not known.is_same((yield from self.refresh(topic))) or has_changed
        return has_changed

    # Without waiting.

    def start(self, topic: str) -> None:
        """Look a topic up without waiting for the reply."""
        if topic not in self._known and topic not in self._pending:
            pending = self._driver.core.ask(Schemas(topic))
            self._pending[topic] = pending
            if pending.done:
                self._answered(topic, pending)
            else:
                pending.on_done = lambda done: self._answered(topic, done)

    def _answered(self, topic: str, pending: Pending) -> None:
        self._pending.pop(topic, None)
        if topic in self._known:
            return
        if isinstance(pending.reply, SchemasReply):
            self._learn(topic, pending.reply)
        else:
            # The put gets the error, if there is one: it asks the same broker.
            self._keep(topic, KnownSchema(0))

    def ready_soon(self, topic: str) -> Flow[KnownSchema | None]:
        """Look a topic up, unless it is known, and wait a short time for the reply, once per topic: with an outbox, the
        broker may be away. Values that were not checked are then refused by the broker, if the topic has a schema."""
        if topic in self._known or topic in self._pending:
            return self._known.get(topic)
        self.start(topic)
        self._driver.pump()
        yield Until(lambda: topic not in self._pending, now_ms() + _SOON_MS)
        return self._known.get(topic)

    def claimed(self, operation: Stage, payload: Frame) -> Flow[tuple[Stage, Frame]]:
        """Check the values of a stage, and name the version, unless the caller has."""
        if operation.envelope.schema_version:
            return operation, payload
        yield from self.ready(operation.topic)
        claimed, (payload,) = claim_payloads(operation, (payload,), self.find)
        assert isinstance(claimed, Stage)
        return claimed, payload

    def look_again(self, topic: str) -> None:
        """Look a topic up again without waiting: what is known of it is out of date."""
        self._known.pop(topic, None)
        self.start(topic)

    def is_awaited(self, topic: str) -> bool:
        """Whether the reply about a topic is outstanding."""
        return topic in self._pending

    def wait(self, topic: str) -> Flow[None]:
        """Wait for the outstanding reply about a topic, if there is one."""
        if topic in self._pending:
            yield Until(lambda: topic not in self._pending)

    def wait_all(self) -> Flow[None]:
        """Wait for all outstanding replies."""
        if self._pending:
            yield Until(lambda: not self._pending)
