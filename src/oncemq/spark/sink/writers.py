"""The writers of `format("oncemq")`: the methods that Spark calls on its driver and in its tasks.

Both write through StagedWrite. They differ in the name under which the broker remembers what was committed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, IntegerType, MapType, StringType, StructType, TimestampType

from oncemq.protocol import errors
from oncemq.spark.checkpoint.content import batch_content, query_content
from oncemq.spark.options import SinkOptions
from oncemq.spark.schema import MESSAGE_PREFIX, SPARK_TYPES
from oncemq.spark.sink.row_digest import WriteContent, rows_content
from oncemq.spark.sink.staged_write import StagedRows, StagedWrite, staged_rows
from oncemq.spark.sink.task import task_identity
from oncemq.spark.source.topic_offsets import topic_bounds
from oncemq.spark.typed.writing import TypedTarget, typed_target

_log = logging.getLogger(__name__)

#: The target in a writer's name if each row names its topic.
_ANY_TOPIC = "*"


def stream_writer_name(query_id: str, topic: str) -> str:
    """The name under which the broker remembers the batches of a query. `topic`: "" if each row names its topic."""
    return f"spark:{query_id}/{topic or _ANY_TOPIC}"


def write_writer_name(write_id: str, topic: str, topic_id: int) -> str:
    """The name under which the broker remembers the writes with an id. A topic that was deleted and created again does
    not contain the former write, so its id is in the name."""
    target = f"{topic}/{topic_id:x}" if topic else _ANY_TOPIC
    return f"spark-write:{quote(write_id, safe='')}/{target}"


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query, each once: identified by the query's id and the batch's number."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._staged_write = StagedWrite(options, _checked(schema, options))

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        identity = task_identity()
        writer = self._writer_name(identity.query_id)
        return self._staged_write.stage(identity, writer, identity.batch_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        staged = _complete(messages)
        if staged:
            writer = self._writer_name(staged[0].identity.query_id)
            self._staged_write.publish(staged, writer, batchId, batch_content(self._options.checkpoint, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        self._staged_write.abort(messages)

    def _writer_name(self, query_id: str) -> str:
        return stream_writer_name(query_id, self._options.topic)


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame; with the option `writeId` once, identified by that id and the option `writeNumber`."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise errors.SettingInvalid('a topic can\'t be overwritten, only appended to: write with .mode("append")')
        self._options = options
        self._staged_write = StagedWrite(options, _checked(schema, options))

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        identity, writer = task_identity(), self.writer_name()
        return self._staged_write.stage(identity, writer, self._options.write_number, iterator, digests=bool(writer))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = _complete(messages)
        if not staged:
            return
        writer, number = self.writer_name(), self._options.write_number
        content = _write_content(self._options, staged) if writer else WriteContent(b"")
        what = "already written"
        try:
            if self._staged_write.publish(staged, writer, number, content.to_bytes()):
                return
        except errors.BatchChanged:
            known = self._staged_write.content_of(writer, number)
            if not content.is_replay_of(known):
                raise
            self._staged_write.abort(messages)
            if not known.endswith(content.rows):
                what = "already written by an earlier run of the query, with other rows"
        _log.warning("writeId '%s', writeNumber %d: %s; nothing was changed", self._options.write_id, number, what)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._staged_write.abort(messages)

    def writer_name(self) -> str:
        """The name by which the broker recognises a repeated write; "" if there is no `writeId`."""
        options = self._options
        if not options.write_id:
            return ""
        if not options.topic:
            return write_writer_name(options.write_id, "", 0)
        if options.create:
            self._staged_write.create_topic(options.topic)
        bounds = topic_bounds(self._staged_write.client, options.topic)
        return write_writer_name(options.write_id, options.topic, bounds.topic_id)


def _write_content(options: SinkOptions, staged: Sequence[StagedRows]) -> WriteContent:
    identity = staged[0].identity
    rows = rows_content(rows for message in staged for rows in message.rows)
    if not identity.query_id:
        return WriteContent(rows)
    if options.checkpoint:
        micro_batch = batch_content(options.checkpoint, identity.batch_id)
    else:
        micro_batch = query_content(identity.query_id, identity.batch_id)
    return WriteContent(rows, micro_batch, identity.run_id)


def _checked(schema: StructType, options: SinkOptions) -> TypedTarget | None:
    """Check the columns of the rows. Returns the topic's schema if they are its columns."""
    if not options.is_typed:
        check_schema(schema, options)
        return None
    target = typed_target(options, schema)
    for name in target.extras(schema.fieldNames(), keeps_times=options.keeps_times):
        _check_type(MESSAGE_PREFIX + name, schema[MESSAGE_PREFIX + name].dataType)
    return target


def _complete(messages: list[WriterCommitMessage | None]) -> list[StagedRows]:
    """The messages of all tasks. Raises RuntimeError if one is missing: its rows would not be published."""
    staged = staged_rows(messages)
    if len(staged) != len(messages):
        raise RuntimeError(
            f"only {len(staged)} of {len(messages)} tasks reported what they staged; Spark 4.3 reports all of them"
        )
    return staged


_ALLOWED: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "topic": (StringType,),
    "timestamp": (TimestampType,),
    "schema_version": (IntegerType,),
}


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raises SettingInvalid, which says what to write instead, for rows that can't be messages."""
    names = schema.fieldNames()
    unknown = [name for name in names if name not in SPARK_TYPES]
    if unknown:
        raise errors.SettingInvalid(
            f"messages have no column {', '.join(map(repr, unknown))}; they have value, key, headers, topic and "
            'timestamp. Put the others into the value, e.g. selectExpr("to_json(struct(*)) AS value")'
        )
    if "value" not in names:
        raise errors.SettingInvalid("messages need a column 'value', of type binary or string")
    if not options.topic and "topic" not in names:
        raise errors.SettingInvalid("no topic is given: set the option 'topic', or add a column 'topic'")
    if options.keeps_versions and "schema_version" not in names:
        raise errors.SettingInvalid("schemaVersions=keep needs a column 'schema_version'")
    if options.keeps_times and "timestamp" not in names:
        raise errors.SettingInvalid("timestamps=keep needs a column 'timestamp'")
    for field in schema.fields:
        _check_type(field.name, field.dataType)


def _check_type(name: str, kind: DataType) -> None:
    column = name.removeprefix(MESSAGE_PREFIX)
    allowed = _ALLOWED.get(column)
    if allowed is not None and not isinstance(kind, allowed):
        wanted = " or ".join(one.typeName() for one in allowed)
        raise errors.SettingInvalid(f"column '{name}' must be of type {wanted}, not {kind.simpleString()}: use cast()")
    if column == "headers" and not (
        isinstance(kind, MapType)
        and isinstance(kind.keyType, StringType)
        and isinstance(kind.valueType, BinaryType | StringType)
    ):
        raise errors.SettingInvalid(f"column '{name}' must be a map from string to binary, not {kind.simpleString()}")
