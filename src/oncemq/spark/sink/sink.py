"""Writing to topics, exactly once.

Each attempt of a task stages its rows in the broker under a name of its own, where nobody sees them. The driver then
publishes the stages that count with one command, which the broker recognises by (query, target) and batch when it
comes again: then it drops what was staged, and says yes. Whatever Spark repeats, a batch is published once, and all
of it at once. What no commit ever names expires in the broker.

A replayed batch may be cut and ordered otherwise: nothing here depends on a row's place in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampType

from oncemq.client.staging import Stager
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.spark.connections import shared_client
from oncemq.spark.options import SinkOptions
from oncemq.spark.schema import NAMES
from oncemq.spark.sink.payloads import Rows, payloads, rows_of
from oncemq.spark.sink.task import TaskIdentity, task_identity
from oncemq.spark.source.topic_offsets import topic_bounds

#: Of one stored batch, about.
_BATCH_BYTES = 1024 * 1024
#: What a batch has beside its rows: a head, and the padding of its sections.
_HEAD_BYTES = 128
#: In a writer's name: the rows say which topic.
_ANY_TOPIC = "*"


class Written(WriterCommitMessage):
    """What one attempt of a task staged: the driver needs no more to publish it, or to drop it."""

    def __init__(self, identity: TaskIdentity, stages: Sequence[tuple[str, str, int]]) -> None:
        self.identity = identity
        #: (topic, stage, rows)
        self.stages = tuple(stages)


class _Writer:
    """What batch and stream have in common. Pickled to the tasks: it holds settings and nothing else."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options

    def _writer(self, query_id: str) -> tuple[str, int | None]:
        """Who commits, as the broker remembers it; and the batch, where it does not come from Spark."""
        raise NotImplementedError

    def _stage(self, batches: Iterator[Any]) -> Written:
        identity = task_identity()
        writer, number = self._writer(identity.query_id)
        batch_id = identity.batch_id if number is None else number
        task = _Task(self._client, self._options, identity, writer, batch_id)
        try:
            for batch in batches:
                task.add(batch)
            return Written(identity, task.finish())
        except errors.StageCommitted:
            # Published before the driver died. The rest is read nevertheless: operators that keep state finish theirs
            # only at the end of the rows.
            for _ in batches:
                pass
            return Written(identity, ())
        except errors.TopicUnknown as error:
            task.give_up()
            advice = "make it with `oncemq topics create`, or write with the option create=true"
            raise errors.TopicUnknown(f"{error.text}: {advice}") from None
        except BaseException:
            task.give_up()
            raise

    def _publish(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        written = sorted(_known(messages), key=lambda message: message.identity.partition)
        if len(written) != len(messages):
            # The others' rows would be missing.
            raise RuntimeError(f"of {len(messages)} tasks, {len(written)} say what they staged: is this Spark 4.3?")
        if not written:
            return
        writer, number = self._writer(written[0].identity.query_id)
        topics: dict[str, list[tuple[str, int]]] = {}
        for message in written:
            for topic, stage, count in message.stages:
                topics.setdefault(topic, []).append((stage, count))
        if not topics and not writer:
            return
        self._client.commit(writer, batch_id if number is None else number, topics)

    def _drop(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Of a failed batch, as far as Spark says what there was. What was published is no stage any more."""
        stages = [stage for message in _known(messages) for _, stage, _ in message.stages]
        if stages:
            self._client.abort(stages)

    @property
    def _client(self) -> Client:
        return shared_client(self._options.url, self._options.timeout_s)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)

    def _writer(self, query_id: str) -> tuple[str, int | None]:
        return f"spark:{query_id}/{self._options.topic or _ANY_TOPIC}", None

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._publish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        self._drop(messages)


class BatchWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise errors.SettingInvalid('a topic can\'t be overwritten, only added to: write with .mode("append")')
        super().__init__(options, schema)

    def _writer(self, query_id: str) -> tuple[str, int | None]:  # noqa: ARG002 - a batch write is recognised by its id
        options = self._options
        if not options.write_id:
            return "", 0
        return f"spark-write:{quote(options.write_id, safe='')}/{self._target()}", options.write_number

    def _target(self) -> str:
        """A topic that was deleted and made again is another one: what was written to the former is not in it."""
        topic = self._options.topic
        if not topic:
            return _ANY_TOPIC
        if self._options.create:
            _make(self._client, self._options, topic)
        return f"{topic}/{topic_bounds(self._client, topic).topic_id:x}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._publish(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._drop(messages)


def _make(client: Client, options: SinkOptions, topic: str) -> None:
    """One that is there stays as it is, whatever its settings."""
    with contextlib.suppress(errors.TopicExists):
        client.create_topic(topic, retain_ms=options.retain_ms)


def _known(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


class _Task:
    """One attempt of one task: a stage for each topic that its rows name."""

    def __init__(
        self, client: Client, options: SinkOptions, identity: TaskIdentity, writer: str, batch_id: int
    ) -> None:
        self._client = client
        self._options = options
        self._name = f"{identity.query_id or 'write'}/{batch_id}/{identity.partition}/{identity.attempt}"
        self._writer = writer
        self._batch_id = batch_id
        self._stagers: dict[str, Stager] = {}

    def add(self, batch: Any) -> None:
        if not batch.num_rows:
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
        rows: Rows = rows_of(batch, keeps_times=self._options.keeps_times)
        stager = self._stagers.get(topic) or self._begin(topic)
        for part in payloads(rows, self._batch_bytes_max()):
            stager.add(part.rows, part.payload, key_hashes=part.key_hashes)

    def _batch_bytes_max(self) -> int:
        """As much as the broker takes at once, where that is little."""
        said = self._client.batch_bytes_max
        return min(_BATCH_BYTES, said - _HEAD_BYTES) if said else _BATCH_BYTES

    def _begin(self, topic: str) -> Stager:
        if self._options.create:
            _make(self._client, self._options, topic)
        name = f"{self._name}/{len(self._stagers)}"
        stager = self._stagers[topic] = self._client.stager(name, topic, self._writer, self._batch_id)
        return stager

    def give_up(self) -> None:
        """Spark tells nobody what a failed attempt has staged: it would lie on the broker's disk for a day."""
        with contextlib.suppress(errors.OnceMQError):
            self._client.abort([stager.stage for stager in self._stagers.values()])

    def finish(self) -> list[tuple[str, str, int]]:
        return [(topic, stager.stage, stager.finish()) for topic, stager in self._stagers.items()]


_ALLOWED: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "topic": (StringType,),
    "timestamp": (TimestampType,),
}


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raises SettingInvalid for rows that can't be messages, with what to write instead."""
    names = schema.fieldNames()
    strange = [name for name in names if name not in NAMES]
    if strange:
        raise errors.SettingInvalid(
            f"messages have no column {', '.join(map(repr, strange))}; they have value, key, headers, topic and "
            'timestamp. Put the others into the value, e.g. selectExpr("to_json(struct(*)) AS value")'
        )
    if "value" not in names:
        raise errors.SettingInvalid("messages need a column 'value', of type binary or string")
    if not options.topic and "topic" not in names:
        raise errors.SettingInvalid("which topic? Give the option 'topic', or a column 'topic'")
    if options.keeps_times and "timestamp" not in names:
        raise errors.SettingInvalid("timestamps=keep needs a column 'timestamp'")
    for field in schema.fields:
        _check_type(field.name, field.dataType)


def _check_type(name: str, kind: DataType) -> None:
    allowed = _ALLOWED.get(name)
    if allowed is not None and not isinstance(kind, allowed):
        wanted = " or ".join(one.typeName() for one in allowed)
        raise errors.SettingInvalid(f"column '{name}' is of type {wanted}, not {kind.simpleString()}: use cast()")
    if name == "headers" and not (
        isinstance(kind, MapType)
        and isinstance(kind.keyType, StringType)
        and isinstance(kind.valueType, BinaryType | StringType)
    ):
        raise errors.SettingInvalid(f"column 'headers' is a map from string to binary, not {kind.simpleString()}")
