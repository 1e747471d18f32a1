"""Stages: messages that are not visible before their commit, for a writer that runs in many processes.

Each of the writer's tasks stages under a name of its own. One of its processes commits the stages that count, under the
writer's name and a rising batch number: all of them or none, and once, however often it tries. The rest expires.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from oncemq.client.core.commands.pending import Pending, again
from oncemq.client.producer.encoding import check_columns, make_put
from oncemq.client.runtime.flow import Flow, Until
from oncemq.client.schemas.claims import all_raw_or_objects
from oncemq.client.schemas.topic_schemas import STALE
from oncemq.protocol import commands, errors, replies
from oncemq.protocol.batch import checksum
from oncemq.protocol.frames import Frame

if TYPE_CHECKING:
    from oncemq.client.context import ClientContext
    from oncemq.client.runtime.driver import Driver
    from oncemq.client.runtime.event_loop import EventLoopDriver
    from oncemq.client.runtime.threads import ThreadDriver
    from oncemq.client.schemas.topic_schemas import TopicSchemas

#: A stager waits for its oldest batch when more than this is in flight.
_IN_FLIGHT_BATCHES = 32
_IN_FLIGHT_BYTES = 8 * 1024 * 1024

#: Names of stages, and how many messages each must hold.
StageCounts = Iterable[tuple[str, int]]


class Stages:
    """Stages and commits. `Client` documents the calls."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    def stage(self, stage: str, topic: str, writer: str, batch: int, values: Sequence[object]) -> Flow[int]:
        """Store messages out of sight. Returns the stage's count."""
        check_columns(values, None, None)
        schemas = self._context.schemas
        found = all_raw_or_objects(values)
        whose = (stage, topic, writer, batch)
        return schemas.retrying([topic], lambda: self._stage(whose, found))

    def _stage(self, whose: tuple[str, str, str, int], values: Sequence[object]) -> Flow[int]:
        checked, claim = self._context.schemas.checked_all(whose[1], values)
        put, payload = make_put(whose[1], False, checked, claim=claim)
        operation = commands.Stage(*whose, put.envelope)
        reply = yield from self._context.call(operation, replies.StageReply, payload)
        return reply.count

    def commit(
        self,
        writer: str,
        batch: int,
        topic: str | Mapping[str, StageCounts],
        stages: StageCounts | None,
        content: bytes,
    ) -> Flow[replies.CommitReply]:
        """Publish stages, all or nothing."""
        command = msgspec.structs.replace(_commit_of(writer, batch, topic, stages), content=content)
        return self._context.call(command, replies.CommitReply)

    def abort(self, stages: Iterable[str]) -> Flow[None]:
        """Delete stages."""
        return self._context.do(commands.Abort(tuple(stages)))


def _commit_of(
    writer: str, batch: int, topic: str | Mapping[str, StageCounts], stages: StageCounts | None
) -> commands.Commit:
    if isinstance(topic, Mapping):
        if stages is not None:
            raise TypeError("commit takes one topic and its stages, or a mapping from topics to theirs")
        parts = tuple((name, tuple(theirs)) for name, theirs in topic.items())
        return commands.Commit(writer, batch, "", (), parts)
    if stages is None:
        raise TypeError("commit takes one topic and its stages, or a mapping from topics to theirs")
    return commands.Commit(writer, batch, topic, tuple(stages))


class StageWriter:
    """Fills one stage without waiting for each batch. What is in flight is bounded, so that memory use is, too."""

    def __init__(self, driver: Driver, schemas: TopicSchemas, stage: str, topic: str, writer: str, batch: int) -> None:
        self._driver = driver
        self._schemas = schemas
        self._stage = stage
        self._whose = (stage, topic, writer, batch)
        #: Messages that were added.
        self.count = 0
        #: What is not answered, in its order.
        self._in_flight: deque[tuple[Pending, commands.Stage]] = deque()
        self._in_flight_bytes = 0
        #: How many messages the stage holds, by the broker's last reply.
        self._staged = 0
        #: The first error. Nothing is sent after it.
        self._error: errors.OnceMQError | None = None

    def add(
        self, count: int, payload: Frame, key_hashes: bytes, ttl_ms: int, schema_version: int, schema_topic_id: int
    ) -> Flow[None]:
        """Send a batch, after those in flight have become few enough."""
        schema = (schema_version, schema_topic_id)
        envelope = commands.Envelope(count, len(payload), checksum(payload), ttl_ms, 0, key_hashes, *schema)
        return self._add(commands.Stage(*self._whose, envelope), payload)

    def _add(self, operation: commands.Stage, payload: Frame) -> Flow[None]:
        operation, payload = yield from self._schemas.claimed(operation, payload)
        size = operation.envelope.size
        yield from self._wait_until(
            lambda: (
                len(self._in_flight) < _IN_FLIGHT_BATCHES
                and (not self._in_flight or self._in_flight_bytes + size <= _IN_FLIGHT_BYTES)
            )
        )
        self._raise_error()
        self._driver.check_usable()
        self._in_flight.append((self._driver.core.submit(operation, payload), operation))
        self._in_flight_bytes += size
        self.count += operation.envelope.count
        self._driver.pump()
        self._handle_replies()
        self._raise_error()

    def finish(self) -> Flow[int]:
        """Wait until everything that was added is stored. Returns the stage's count."""
        yield from self._wait_until(lambda: not self._in_flight)
        self._raise_error()
        if self._staged != self.count:
            # Another stager uses the same stage, or a part of it expired before the rest came.
            text = f"stage '{self._stage}' holds {self._staged} messages; {self.count} were added by this stager"
            raise errors.StageMismatch(text)
        return self.count

    def _wait_until(self, is_enough: Callable[[], bool]) -> Flow[None]:
        """Wait until `is_enough`, or until something was refused."""
        self._handle_replies()
        try:
            while self._error is None and not is_enough():
                yield Until(self._in_flight[0][0])
                self._handle_replies()
        except BaseException as error:
            # Interrupted, or closed: what was not staged yet must not be staged later by surprise.
            self._give_up(error)
            raise

    def _handle_replies(self) -> None:
        """Handle the replies that have arrived."""
        while self._in_flight and self._in_flight[0][0].done:
            pending, operation = self._in_flight.popleft()
            self._in_flight_bytes -= operation.envelope.size
            if pending.error is not None:
                self._error = self._error or pending.error
                if isinstance(pending.error, STALE):
                    # The next stager continues with the schema that the topic has now.
                    self._schemas.start(operation.topic)
            else:
                self._staged = replies.expect(pending.result(), replies.StageReply).count

    def _give_up(self, error: BaseException) -> None:
        reason = error if isinstance(error, errors.OnceMQError) else errors.ClientClosed("the caller gave up")
        self._error = self._error or reason
        for pending, _ in self._in_flight:
            self._driver.give_up(pending, reason)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise again(self._error)


class _BaseStager:
    """What the stagers of both clients have in common."""

    def __init__(
        self,
        driver: ThreadDriver | EventLoopDriver,
        schemas: TopicSchemas,
        stage: str,
        topic: str,
        writer: str,
        batch: int,
    ) -> None:
        self.stage, self.topic, self.writer, self.batch = stage, topic, writer, batch
        self._driver = driver
        self._stage_writer = StageWriter(driver, schemas, stage, topic, writer, batch)

    @property
    def count(self) -> int:
        """How many messages were added."""
        return self._stage_writer.count


class Stager(_BaseStager):
    """Stages many batches, each in flight while the next one is made; returned by `client.stager`.

    >>> stager = client.stager("part-0", "results", "nightly", 1)
    >>> for values in chunks:
    ...     stager.add(len(values), encode_batch(values))
    >>> stages = [("part-0", stager.finish())]
    """

    _driver: ThreadDriver

    def add(
        self,
        count: int,
        payload: Frame,
        *,
        key_hashes: bytes = b"",
        ttl_ms: int = 0,
        schema_version: int = 0,
        schema_topic_id: int = 0,
    ) -> None:
        """Stage a batch of `count` messages, encoded as protocol/batch.py does. Returns before it is stored: `finish`
        waits for that. For a topic with a schema, `schema_version` is the version that the caller has checked the
        values against, and `schema_topic_id` the id of the topic.

        Raises the error that an earlier batch was refused with, and TooLarge for a batch that is larger than the
        broker accepts (`client.batch_bytes_max`).

        >>> stager.add(2, encode_batch([b"a", b"b"]))
        """
        schema = (schema_version, schema_topic_id)
        self._driver.run(self._stage_writer.add(count, payload, key_hashes, ttl_ms, *schema))

    def finish(self) -> int:
        """Wait until everything that was added is stored. Returns the stage's count; raises the first error.

        If nothing was added, there is no stage: leave it out of the commit.

        >>> stager.finish()
        2
        """
        return self._driver.run(self._stage_writer.finish())


class AsyncStager(_BaseStager):
    """`Stager` for asyncio: `add` and `finish` are awaited.

    >>> stager = client.stager("part-0", "results", "nightly", 1)
    >>> await stager.add(2, encode_batch([b"a", b"b"]))
    >>> await stager.finish()
    2
    """

    _driver: EventLoopDriver

    async def add(
        self,
        count: int,
        payload: Frame,
        *,
        key_hashes: bytes = b"",
        ttl_ms: int = 0,
        schema_version: int = 0,
        schema_topic_id: int = 0,
    ) -> None:
        """Stage a batch of `count` messages, encoded as protocol/batch.py does. Returns before it is stored: `finish`
        waits for that. For a topic with a schema, `schema_version` is the version that the caller has checked the
        values against, and `schema_topic_id` the id of the topic.

        Raises the error that an earlier batch was refused with, and TooLarge for a batch that is larger than the
        broker accepts (`client.batch_bytes_max`).

        >>> await stager.add(2, encode_batch([b"a", b"b"]))
        """
        await self._driver.run(
            self._stage_writer.add(count, payload, key_hashes, ttl_ms, schema_version, schema_topic_id)
        )

    async def finish(self) -> int:
        """Wait until everything that was added is stored. Returns the stage's count; raises the first error.

        If nothing was added, there is no stage: leave it out of the commit.

        >>> await stager.finish()
        2
        """
        return await self._driver.run(self._stage_writer.finish())
