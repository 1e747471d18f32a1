"""The schemas of topics that a client puts to: looked up when they are needed, and kept.

A topic without a schema costs nothing: a value is sent unchecked first, unless the topic is known to have a schema. If
the broker refuses it because of a schema, the schema is looked up, the value is checked, and sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from oncemq.client.core.commands.pending import Pending
from oncemq.client.producer.encoding import Claim
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Until
from oncemq.client.runtime.rpc import ask
from oncemq.client.schemas.claims import OUTDATED, KnownSchema, checked, checked_all, claim_payloads, known_of
from oncemq.protocol import errors
from oncemq.protocol.commands import Schemas, Stage
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import SchemasReply

if TYPE_CHECKING:
    from oncemq.client.runtime.driver import Driver
    from oncemq.client.runtime.flow import Flow
    from oncemq.protocol.schema import Schema, SchemaVersion

#: The broker's answers that say that a schema is not known, or not any more.
STALE = (errors.SchemaRequired, errors.SchemaUnknown)
#: What a broker without schemas answers.
_NO_SCHEMAS = (errors.TopicUnknown, errors.Malformed, errors.Unsupported, errors.NameInvalid)
#: At most this many topics, and versions, are kept.
_KEPT_MAX = 10_000
#: How long a put that does not need the broker waits for one that may be away.
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
        #: Topics that are known, perhaps not as they are now.
        self._doubted: set[str] = set()

    def find(self, topic: str) -> KnownSchema | None:
        """Return what is known of a topic; None: it was not looked up."""
        return self._known.get(topic)

    def ready(self, topic: str) -> Flow[KnownSchema]:
        """Look a topic up, unless it is known. Wait for the outstanding reply about it, if there is one."""
        yield from self.wait(topic)
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
        self._keep_version(topic_id, reply.versions[0])
        return reply.versions[0].schema

    def decode(self, message: Message, as_type: type[T]) -> Flow[T]:
        """Return the value of a message as an object, after the schema that it was written with was looked up."""
        if message.schema is None and message.schema_version:
            schema = yield from self.load(message.topic, message.topic_id, message.schema_version)
            message = msgspec.structs.replace(message, schema=schema)
        return message.decode(as_type)

    def _learn(self, topic: str, reply: SchemasReply) -> KnownSchema:
        for each in reply.versions:
            self._keep_version(reply.topic_id, each)
        return self._keep(topic, known_of(reply))

    def _keep(self, topic: str, known: KnownSchema) -> KnownSchema:
        if len(self._known) >= _KEPT_MAX:
            self._known.clear()
        self._known[topic] = known
        self._doubted.discard(topic)
        # Any reply will do: nobody waits for another one any more.
        self._pending.pop(topic, None)
        self._on_known(topic, known)
        return known

    def _keep_version(self, topic_id: int, version: SchemaVersion) -> None:
        if len(self._versions) >= _KEPT_MAX:
            self._versions.clear()
        self._versions[topic_id, version.version] = version.schema

    # Values.

    def checked(self, topic: str, value: object) -> tuple[bytes, Claim]:
        """Return a value as it is put, by what is known of its topic. Raises SchemaMismatch, SchemaNeeded."""
        return checked(topic, value, self._known.get(topic))

    def checked_all(self, topic: str, values: Sequence[object]) -> tuple[list[bytes], Claim]:
        """Return values that are put together, by what is known of their topic. Raises SchemaMismatch, SchemaNeeded."""
        return checked_all(topic, values, self._known.get(topic))

    def retrying(self, topics: Iterable[str], attempt: Callable[[], Flow[T]]) -> Flow[T]:
        """Run a flow that puts to these topics. If it fails because what is known of them is out of date, look them up
        and run it again."""
        topics = list(topics)
        try:
            return (yield from attempt())
        except STALE:
            for topic in topics:
                yield from self.refresh(topic)
        except OUTDATED:
            has_changed = False
            for topic in topics:
                has_changed = (yield from self.has_changed(topic)) or has_changed
            if not has_changed:
                raise
        return (yield from attempt())

    def has_changed(self, topic: str) -> Flow[bool]:
        """Look a topic up again. Return whether it has another schema than was known."""
        known = self._known.get(topic)
        found = yield from self.refresh(topic)
        return known is None or not known.is_same(found)

    # Without waiting.

    def start(self, topic: str) -> None:
        """Look a topic up without waiting for the reply."""
        if topic not in self._pending:
            pending = self._driver.core.ask(Schemas(topic))
            self._pending[topic] = pending
            if pending.done:
                self._answered(topic, pending)
            else:
                pending.on_done = lambda done: self._answered(topic, done)

    def _answered(self, topic: str, pending: Pending) -> None:
        if self._pending.get(topic) is not pending:
            return
        if isinstance(pending.reply, SchemasReply):
            self._learn(topic, pending.reply)
        elif isinstance(pending.error, _NO_SCHEMAS):
            self._keep(topic, KnownSchema(0))
        else:
            # Nothing is known. The put gets the error, if there still is one: it asks the same broker.
            del self._pending[topic]

    def ready_soon(self, topic: str) -> Flow[None]:
        """Look a topic up, unless it is known and not in doubt, and wait a short time for the reply: with an outbox,
        the broker may be away. Values that were not checked are then refused by the broker, if the topic has a
        schema."""
        if (topic not in self._known or topic in self._doubted) and topic not in self._pending:
            self._doubted.discard(topic)
            yield from self._look_soon(topic)

    def has_changed_soon(self, topic: str) -> Flow[bool]:
        """As `has_changed`, but what is known of a topic counts if the broker does not answer soon."""
        known = self._known.get(topic)
        if known is None:
            return (yield from self.has_changed(topic))
        yield from self._look_soon(topic)
        return not known.is_same(self._known.get(topic, known))

    def _look_soon(self, topic: str) -> Flow[None]:
        self.start(topic)
        self._driver.pump()
        yield from self.wait(topic, now_ms() + _SOON_MS)

    def claimed(self, operation: Stage, payload: Frame) -> Flow[tuple[Stage, Frame]]:
        """Check the values of a stage, and name the version, unless the caller has."""
        if operation.envelope.schema_version:
            return operation, payload
        return (yield from self.retrying([operation.topic], lambda: self._claimed(operation, payload)))

    def _claimed(self, operation: Stage, payload: Frame) -> Flow[tuple[Stage, Frame]]:
        yield from self.ready(operation.topic)
        claimed, (payload,) = claim_payloads(operation, (payload,), self.find)
        assert isinstance(claimed, Stage)
        return claimed, payload

    def doubt_all(self) -> None:
        """Let `ready_soon` look every topic up again."""
        self._doubted = set(self._known)

    def is_awaited(self, topic: str) -> bool:
        """Whether the reply about a topic is outstanding."""
        return topic in self._pending

    def wait(self, topic: str, until_ms: float | None = None) -> Flow[bool]:
        """Wait for the outstanding reply about a topic, if there is one. False: the time was over first."""
        return topic not in self._pending or (yield Until(lambda: topic not in self._pending, until_ms))

    def wait_all(self, until_ms: float | None = None) -> Flow[bool]:
        """Wait for all outstanding replies. False: the time was over first."""
        return not self._pending or (yield Until(lambda: not self._pending, until_ms))
