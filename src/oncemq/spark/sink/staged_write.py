"""The exactly-once protocol of the sink: stage the rows of each task, then publish all stages with one commit.

Each attempt of a task stages its rows in the broker under its own name, where no reader sees them. The driver then
publishes the stages of the successful attempts with one command. If the command is repeated, the broker recognises it
by (query, target) and batch, deletes the staged rows, and reports success. So a batch is published once and as a whole,
whatever Spark repeats. Stages that no commit names expire in the broker. A commit also says what identifies the content
of the batch, and the broker refuses a number that comes back with other content.

A replayed batch may be partitioned and ordered differently: nothing here depends on the position of a row in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from oncemq.arrow.payloads import Payload, build_payloads, message_columns, version_runs
from oncemq.client.internal import internal_api
from oncemq.client.staging import Stager
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.commands import Writer
from oncemq.protocol.replies import WriterReply
from oncemq.spark.checkpoint.content import REMEDY
from oncemq.spark.connections import shared_client
from oncemq.spark.options import SinkOptions
from oncemq.spark.sink.row_digest import RowDigest, TopicRows
from oncemq.spark.sink.task import TaskIdentity
from oncemq.spark.source.topic_offsets import topic_bounds
from oncemq.spark.typed.writing import TypedTarget

#: The approximate size of a stored batch.
_BATCH_BYTES = 1024 * 1024
#: The upper bound of what a batch contains in addition to its rows: a head, and the padding of its sections.
_HEAD_BYTES = 128


class StagedRows(WriterCommitMessage):
    """What one attempt of a task staged. The driver needs nothing else to publish or to delete it."""

    def __init__(
        self, identity: TaskIdentity, stages: Sequence[tuple[str, str, int]], rows: Sequence[TopicRows] = ()
    ) -> None:
        self.identity = identity
        #: (topic, stage, rows)
        self.stages = tuple(stages)
        #: What identifies the rows, if they were digested.
        self.rows = tuple(rows)


def staged_rows(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    """The messages of the tasks that succeeded, in the order of their partitions."""
    found = [message for message in messages if isinstance(message, StagedRows)]
    return sorted(found, key=lambda message: message.identity.partition)


class StagedWrite:
    """Stages, publishes and aborts. It is pickled for the tasks, so it contains only settings."""

    def __init__(self, options: SinkOptions, typed: TypedTarget | None = None) -> None:
        self._options = options
        #: The schema of the topic, if the rows have its columns.
        self._typed = typed

    @property
    def client(self) -> Client:
        return shared_client(self._options.broker, self._options.timeout_s)

    def create_topic(self, topic: str) -> None:
        """Create a topic. An existing topic keeps its settings."""
        with contextlib.suppress(errors.TopicExists):
            self.client.create_topic(topic, retain_ms=self._options.retain_ms)

    def stage(
        self, identity: TaskIdentity, writer: str, batch_id: int, batches: Iterator[Any], *, digests: bool = False
    ) -> StagedRows:
        """Stage the rows of a task. `writer` is the name under which the broker remembers the commit. `digests` says
        whether the commit needs the digest of the rows."""
        task = self.begin(identity, writer, batch_id, digests=digests)
        try:
            # If the batch was published before, the remaining rows are read nevertheless: the digest needs them, and
            # stateful operators complete their work only when all rows were read.
            for batch in batches:
                task.add(batch)
            return StagedRows(identity, task.finish(), task.rows())
        except errors.TopicUnknown as error:
            task.abort()
            advice = "create it with `oncemq topics create`, or write with the option create=true"
            raise errors.TopicUnknown(f"{error.text}: {advice}") from None
        except errors.SchemaRequired as error:
            task.abort()
            advice = "write its columns with the option schema=topic (in a pipeline `value: typed`)"
            raise errors.SchemaRequired(f"{error.text}: {advice}") from None
        except BaseException:
            task.abort()
            raise

    def begin(self, identity: TaskIdentity, writer: str, batch_id: int, *, digests: bool = False) -> TaskAttempt:
        """Begin to stage the rows of a task. The arguments are those of `stage`. The caller ends it."""
        digest = RowDigest() if digests else None
        return TaskAttempt(self, self._options, identity, writer, batch_id, digest, self._typed)

    def publish(self, messages: Sequence[StagedRows], writer: str, batch_id: int, content: bytes) -> bool:
        """Publish the rows of a batch, in the order of its partitions. Returns False if it was published before.

        `content` identifies what it consists of (b"" = not known). Raises BatchChanged if the batch was published
        before with other content."""
        topics: dict[str, list[tuple[str, int]]] = {}
        for message in messages:
            for topic, stage, count in message.stages:
                topics.setdefault(topic, []).append((stage, count))
        if not (topics or writer):
            return True
        try:
            return not self.client.commit(writer, batch_id, topics, content=content).before
        except errors.BatchChanged as error:
            remedy = "Use another 'writeId', or the next 'writeNumber'" if self._options.write_id else REMEDY
            raise errors.BatchChanged(f"{error.text}. {remedy}") from None

    def content_of(self, writer: str, batch_id: int) -> bytes:
        """The content with which a batch was published; b"" = it is not known any more."""
        reply = internal_api(self.client).ask(Writer(writer), WriterReply)
        return dict(reply.commits).get(batch_id, b"")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the stages of a failed batch, as far as Spark reports them. Published rows are not stages any more."""
        stages = [stage for message in staged_rows(messages) for _, stage, _ in message.stages]
        if stages:
            self.client.abort(stages)


class TaskAttempt:
    """One attempt of one task: a stage for each topic that its rows name."""

    def __init__(
        self,
        write: StagedWrite,
        options: SinkOptions,
        identity: TaskIdentity,
        writer: str,
        batch_id: int,
        row_digest: RowDigest | None,
        typed: TypedTarget | None,
    ) -> None:
        self._write = write
        self._typed = typed
        self._client = write.client
        self._options = options
        self._name = f"{identity.query_id or 'write'}/{batch_id}/{identity.partition}/{identity.attempt}"
        self._writer = writer
        self._batch_id = batch_id
        self._row_digest = row_digest
        self._stagers: dict[str, Stager] = {}
        #: The broker says that the batch is published.
        self._is_published = False

    def add(self, batch: Any) -> None:
        if not batch.num_rows or (self._is_published and self._row_digest is None):
            return
        if self._options.topic:
            self._add_to(self._options.topic, batch)
            return
        topics = batch.column("topic").dictionary_encode()
        if topics.null_count:
            raise errors.Malformed(f"column 'topic' is null in {topics.null_count} of {len(topics)} rows")
        for index, topic in enumerate(topics.dictionary.to_pylist()):
            rows = batch if len(topics.dictionary) == 1 else batch.filter(pc.equal(topics.indices, index))
            self._add_to(topic, rows)

    def _add_to(self, topic: str, batch: Any) -> None:
        # The broker's limit may be smaller than the usual size of a batch.
        limit = self._client.batch_bytes_max
        bytes_max = min(_BATCH_BYTES, limit - _HEAD_BYTES) if limit else _BATCH_BYTES
        keeps_times = self._options.keeps_times
        if self._typed is not None:
            typed_rows = self._typed.rows(batch, keeps_times=keeps_times)
            if self._row_digest is not None:
                self._row_digest.add(topic, self._typed.messages(typed_rows))
            payloads = self._typed.payloads(typed_rows, bytes_max)
            self._stage(topic, payloads, self._typed.version.version, self._typed.topic_id)
            return
        columns = message_columns(batch, keeps_times=keeps_times)
        if self._row_digest is not None:
            self._row_digest.add(topic, columns)
        if not self._options.keeps_versions:
            self._stage(topic, build_payloads(columns, bytes_max))
            return
        topic_id = topic_bounds(self._client, topic).topic_id
        for start, count, version in version_runs(batch.column("schema_version")):
            part = columns.slice(start, count)
            self._stage(topic, build_payloads(part, bytes_max, version), version, topic_id if version else 0)

    def _stage(self, topic: str, payloads: Iterator[Payload], version: int = 0, topic_id: int = 0) -> None:
        """Stage batches. The version of the topic's schema is one that the values match; 0 = they were not checked."""
        if self._is_published:
            return
        try:
            self._stage_each(topic, payloads, version, topic_id)
        except errors.StageCommitted:
            self._is_published = True

    def _stage_each(self, topic: str, payloads: Iterator[Payload], version: int, topic_id: int) -> None:
        stager = self._stagers.get(topic) or self._begin(topic)
        for part in payloads:
            stager.add(
                part.rows,
                part.payload,
                key_hashes=part.key_hashes,
                schema_version=version,
                schema_topic_id=topic_id,
            )

    def _begin(self, topic: str) -> Stager:
        if self._options.create:
            self._write.create_topic(topic)
        name = f"{self._name}/{len(self._stagers)}"
        stager = self._stagers[topic] = self._client.stager(name, topic, self._writer, self._batch_id)
        return stager

    def finish(self) -> list[tuple[str, str, int]]:
        """Wait until all rows are staged. Returns nothing if the batch is published."""
        try:
            found = [(topic, stager.stage, stager.finish()) for topic, stager in self._stagers.items()]
        except errors.StageCommitted:
            self._is_published = True
        return [] if self._is_published else found

    def rows(self) -> tuple[TopicRows, ...]:
        return self._row_digest.topics() if self._row_digest is not None else ()

    def abort(self) -> None:
        """Delete the stages. Spark does not report what a failed attempt staged; it would stay for a day."""
        with contextlib.suppress(errors.OnceMQError):
            self._client.abort([stager.stage for stager in self._stagers.values()])
