"""Writes a stream to a target, and its dead letters to topics: `oncemq_with_dead_letters`.

A row of the stream has two columns, of which one is null: `row`, a struct of the target's columns, and `dead`, a struct
of the columns of a message. The options of the target's sink have the prefix `inner.`.

Each task stages its dead letters in the broker, and its other rows in the target. The driver commits the dead letters
first, then the rows, each under the query's id and the batch's number. If it dies between the two, the replay finds the
dead letters committed, and commits the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from oncemq.spark.broker import REACHING
from oncemq.spark.checkpoint.content import batch_content
from oncemq.spark.options import SinkOptions, sink_options
from oncemq.spark.sink.staged_write import StagedRows, StagedWrite, TaskAttempt
from oncemq.spark.sink.task import TaskIdentity, task_identity
from oncemq.spark.targets.declarations import OBSERVED_DEAD
from oncemq.spark.targets.staging_writer import checkpoint_of, refuse_overwrite

_INNER = "inner."


def with_dead_letters(rows: DataFrame, dead: DataFrame) -> DataFrame:
    """One stream of both, for the sink. It also counts the dead letters."""
    # The empty structs give each side the columns of the other one.
    of_rows = rows.select(F.struct("*").alias("row"))
    of_dead = dead.select(F.struct("*").alias("dead"))
    both = of_rows.unionByName(of_dead, allowMissingColumns=True)
    return both.observe(OBSERVED_DEAD, F.count(F.col("dead")).alias("rows"))


def dead_letter_options(sink: str, options: Mapping[str, str], broker: Mapping[str, str]) -> dict[str, str]:
    """The options of this sink, given those of the target's sink and of the broker."""
    return {"sink": sink, **broker, **{_INNER + name: value for name, value in options.items()}}


class DeadLetterSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "oncemq_with_dead_letters"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DeadLetterWriter:  # noqa: N802
        refuse_overwrite(overwrite)
        checkpoint = checkpoint_of(self.options)
        inner = {name[len(_INNER) :]: value for name, value in self.options.items() if name.startswith(_INNER)}
        rows = schema["row"].dataType
        assert isinstance(rows, StructType)
        writer = _sink(self.options["sink"])({**inner, "checkpointLocation": checkpoint}).streamWriter(rows, False)
        broker = {name: self.options[name] for name in (*REACHING, "timeout") if name in self.options}
        return DeadLetterWriter(writer, sink_options({**broker, "create": "true"}, is_stream=True), checkpoint)


def _sink(name: str) -> type[DataSource]:
    """Imported on use, because each sink needs packages that the others do not need."""
    if name == "oncemq_parquet":
        from oncemq.spark.targets.files.parquet import ParquetSink

        return ParquetSink
    if name == "oncemq_delta":
        from oncemq.spark.targets.delta.sink import DeltaSink

        return DeltaSink
    if name == "oncemq_postgres":
        from oncemq.spark.targets.postgres.sink import PostgresSink

        return PostgresSink
    from oncemq.spark.data_source import OnceMQSource

    return OnceMQSource


class RowsAndLetters(WriterCommitMessage):
    """What one attempt of a task has staged."""

    def __init__(self, rows: WriterCommitMessage | None, letters: StagedRows) -> None:
        self.rows = rows
        self.letters = letters


class DeadLetterWriter(DataSourceStreamArrowWriter):
    def __init__(self, writer: Any, options: SinkOptions, checkpoint: str) -> None:
        self.writer = writer
        self._letters = StagedWrite(options)
        self._checkpoint = checkpoint
        self.identify = task_identity

    def write(self, iterator: Iterator[Any]) -> RowsAndLetters:
        identity = self.identify()
        letters = self._letters.begin(identity, _writer_name(identity), identity.batch_id)
        try:
            rows = self.writer.write(_stage_letters(iterator, letters))
            return RowsAndLetters(rows, StagedRows(identity, letters.finish()))
        except BaseException:
            letters.abort()
            raise

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        found = _found(messages)
        if found:
            letters = sorted((each.letters for each in found), key=lambda each: each.identity.partition)
            content = batch_content(self._checkpoint, batchId)
            self._letters.publish(letters, _writer_name(letters[0].identity), batchId, content)
        self.writer.commit(_inner(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.writer.abort(_inner(messages), batchId)
        # If this fails, because the broker is away, they expire there.
        self._letters.abort([each.letters for each in _found(messages)])


def _writer_name(identity: TaskIdentity) -> str:
    """The name under which the broker remembers the commits of dead letters. Rows in a topic have another one, whatever
    the topic's name is (`stream_writer_name`)."""
    return f"spark-dead-letters:{identity.query_id}"


def _found(messages: Sequence[WriterCommitMessage | None]) -> list[RowsAndLetters]:
    return [message for message in messages if isinstance(message, RowsAndLetters)]


def _inner(messages: Sequence[WriterCommitMessage | None]) -> list[WriterCommitMessage | None]:
    return [message.rows if isinstance(message, RowsAndLetters) else None for message in messages]


def _stage_letters(batches: Iterator[Any], letters: TaskAttempt) -> Iterator[Any]:
    """Stage the dead letters of each batch, and yield its other rows."""
    for batch in batches:
        dead, rows = batch.column("dead"), batch.column("row")
        if dead.null_count < len(dead):
            letters.add(pa.RecordBatch.from_struct_array(dead.filter(dead.is_valid())))
        if rows.null_count < len(rows):
            yield pa.RecordBatch.from_struct_array(rows if not rows.null_count else rows.filter(rows.is_valid()))
