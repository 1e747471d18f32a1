"""Starts a streaming query that writes each row to a target once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from oncemq.spark.broker import Broker
from oncemq.spark.checkpoint.location import refuse_damaged
from oncemq.spark.session import activate
from oncemq.spark.targets import ConsoleTarget, DeltaTarget, ParquetTarget, PostgresTarget, Target, TopicTarget

__all__ = ["start"]

#: Spark warns when a data source is registered a second time.
_registered: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
_registration = threading.Lock()


def start(
    stream: DataFrame,
    target: Target,
    *,
    checkpoint: str,
    trigger: Mapping[str, Any],
    name: str,
    broker: Broker,
    output: str = "append",
    timeout: str = "30s",
    dead: DataFrame | None = None,
) -> StreamingQuery:
    """Start a query that writes the stream's rows to the target, and continues where its checkpoint ends. It can be
    called in any thread.

    `trigger` holds the arguments of `DataStreamWriter.trigger`, `name` is the name of the query ("" = none), `output`
    is Spark's output mode, and `timeout` is how long the broker may be unreachable. `dead` has the dead letters of the
    stream, as messages with their topics, which are written in the same batches. Raises SettingInvalid for problems of
    the target that can be detected before the start, and CheckpointBehind for a checkpoint that has lost the id of its
    query.
    """
    activate(stream.sparkSession)
    refuse_damaged(checkpoint)
    reach = {**broker.options, "timeout": timeout, "checkpointLocation": checkpoint}
    writer = _writer(stream, target, reach, output) if dead is None else _both(stream, dead, target, reach)
    writer = writer.option("checkpointLocation", checkpoint).trigger(**trigger).outputMode(output)
    return (writer.queryName(name) if name else writer).start()


def _writer(stream: DataFrame, target: Target, broker: Mapping[str, str], output: str) -> DataStreamWriter:
    if isinstance(target, TopicTarget):
        options = _topic_options(target, broker)
        if output == "update":
            return stream.writeStream.foreachBatch(_upsert(options))
        return stream.writeStream.format("oncemq").options(**options)
    if isinstance(target, ConsoleTarget):
        return stream.writeStream.format("console").options(numRows=target.rows, truncate=False)
    return _write_with(*_staging_sink(stream, target))


def _topic_options(target: TopicTarget, broker: Mapping[str, str]) -> dict[str, str]:
    options = {**broker, "create": str(target.create).lower()}
    if target.is_typed:
        options["schema"] = "topic"
    return options | ({"topic": target.topic} if target.topic else {})


def _both(stream: DataFrame, dead: DataFrame, target: Target, broker: Mapping[str, str]) -> DataStreamWriter:
    """Write to the target, and the dead letters to their topics."""
    from oncemq.spark.targets.dead_letters import DeadLetterSink, dead_letter_options, with_dead_letters

    assert not isinstance(target, ConsoleTarget), "checks/errors.py refuses it"
    if isinstance(target, TopicTarget):
        rows, name, options = stream, "oncemq", _topic_options(target, broker)
    else:
        rows, sink, options = _staging_sink(stream, target)
        name = sink.name()
    return _write_with(with_dead_letters(rows, dead), DeadLetterSink, dead_letter_options(name, options, broker))


def _upsert(options: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    """Writes the changed rows of a micro-batch. Spark gives Python sinks no output mode `update`, so that each batch is
    a batch write, which the broker recognises by the query's id and the batch's number if it is repeated."""

    def write(batch: DataFrame, number: int) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query_id, "Spark sets it in the thread of the query"
        identity = {"writeId": upsert_id(query_id), "writeNumber": str(number)}
        batch.write.format("oncemq").options(**options, **identity).mode("append").save()

    return write


def upsert_id(query_id: str) -> str:
    """The id of the writes of a query with the output mode `update`."""
    return f"query/{query_id}"


def _staging_sink(
    stream: DataFrame, target: ParquetTarget | DeltaTarget | PostgresTarget
) -> tuple[DataFrame, type[DataSource], dict[str, str]]:
    """The rows as the sink gets them, the sink, and its options."""
    # Imported on use, because each sink needs packages that the others do not need.
    if isinstance(target, ParquetTarget):
        from oncemq.spark.targets.files import parquet

        return stream, parquet.ParquetSink, parquet.prepare(target, stream.schema)
    if isinstance(target, DeltaTarget):
        from oncemq.spark.targets.delta import sink as delta

        return stream, delta.DeltaSink, delta.prepare(target, stream.schema)
    from oncemq.spark.targets.postgres import sink as postgres

    options = postgres.prepare(target, stream.schema)
    return postgres.nested_to_json(stream), postgres.PostgresSink, options


def _write_with(stream: DataFrame, sink: type[DataSource], options: Mapping[str, str]) -> DataStreamWriter:
    session = stream.sparkSession
    with _registration:
        if sink.name() not in _registered.setdefault(session, set()):
            session.dataSource.register(sink)
            _registered[session].add(sink.name())
    return stream.writeStream.format(sink.name()).options(**options)
