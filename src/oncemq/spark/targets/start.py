"""Starts a streaming query that writes each row to a target once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from oncemq.spark.targets import ConsoleTarget, DeltaTarget, ParquetTarget, PostgresTarget, Target, TopicTarget

__all__ = ["start"]

#: Spark warns when a data source is registered a second time.
_registered: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def start(
    stream: DataFrame, target: Target, *, checkpoint: str, trigger: Mapping[str, Any], name: str, url: str
) -> StreamingQuery:
    """Start a query that appends the stream's rows to the target, and continues where its checkpoint ends.

    `trigger` holds the arguments of `DataStreamWriter.trigger`, `name` is the name of the query ("" = none), and `url`
    is the URL of the broker. Raises SettingInvalid for problems of the target that can be detected before the start.
    """
    writer = _writer(stream, target, url).option("checkpointLocation", checkpoint).trigger(**trigger)
    return (writer.queryName(name) if name else writer).start()


def _writer(stream: DataFrame, target: Target, url: str) -> DataStreamWriter:
    if isinstance(target, TopicTarget):
        writer = stream.writeStream.format("oncemq").options(url=url, create=target.create)
        return writer.option("topic", target.topic) if target.topic else writer
    if isinstance(target, ConsoleTarget):
        return stream.writeStream.format("console").options(numRows=target.rows, truncate=False)
    return _staging_writer(stream, target)


def _staging_writer(stream: DataFrame, target: ParquetTarget | DeltaTarget | PostgresTarget) -> DataStreamWriter:
    # Imported on use, because each sink needs packages that the others do not need.
    if isinstance(target, ParquetTarget):
        from oncemq.spark.targets.files import parquet

        return _write_with(stream, parquet.ParquetSink, parquet.prepare(target, stream.schema))
    if isinstance(target, DeltaTarget):
        from oncemq.spark.targets.delta import sink as delta

        return _write_with(stream, delta.DeltaSink, delta.prepare(target, stream.schema))
    from oncemq.spark.targets.postgres import sink as postgres

    options = postgres.prepare(target, stream.schema)
    return _write_with(postgres.nested_to_json(stream), postgres.PostgresSink, options)


def _write_with(stream: DataFrame, sink: type[DataSource], options: Mapping[str, str]) -> DataStreamWriter:
    session = stream.sparkSession
    if sink.name() not in _registered.setdefault(session, set()):
        session.dataSource.register(sink)
        _registered[session].add(sink.name())
    return stream.writeStream.format(sink.name()).options(**options)
