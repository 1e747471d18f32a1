"""Streams into targets, each row once: `start` is all that others need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from oncemq.spark.targets.declarations import (
    ConsoleTarget,
    DeltaTarget,
    ParquetTarget,
    PostgresTarget,
    Target,
    TopicTarget,
)

__all__ = ["start"]

#: Spark warns when a data source is registered a second time.
_registered: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def start(
    stream: DataFrame, target: Target, *, checkpoint: str, trigger: Mapping[str, Any], name: str, url: str
) -> StreamingQuery:
    """A query that appends the stream's rows to the target, and goes on where its checkpoint says.

    `trigger` is what `DataStreamWriter.trigger` takes, `name` the query's ("" = it has none), and `url` the broker's.
    What is wrong with a target is an error here, before the query starts, as far as it can be known.
    """
    writer = _writer(stream, target, url).option("checkpointLocation", checkpoint).trigger(**trigger)
    return (writer.queryName(name) if name else writer).start()


def _writer(stream: DataFrame, target: Target, url: str) -> DataStreamWriter:
    if isinstance(target, TopicTarget):
        writer = stream.writeStream.format("oncemq").options(url=url, create=target.create)
        return writer.option("topic", target.topic) if target.topic else writer
    if isinstance(target, ConsoleTarget):
        return stream.writeStream.format("console").options(numRows=target.rows, truncate=False)
    return _staging(stream, target)


def _staging(stream: DataFrame, target: ParquetTarget | DeltaTarget | PostgresTarget) -> DataStreamWriter:
    """Imported here: each of them needs packages that the others don't."""
    if isinstance(target, ParquetTarget):
        from oncemq.spark.targets.files import parquet

        return _with(stream, parquet.ParquetSink, parquet.prepare(target, stream.schema))
    if isinstance(target, DeltaTarget):
        from oncemq.spark.targets.delta import sink as delta

        return _with(stream, delta.DeltaSink, delta.prepare(target, stream.schema))
    from oncemq.spark.targets.postgres import sink as postgres

    return _with(postgres.with_json(stream), postgres.PostgresSink, postgres.prepare(target, stream.schema))


def _with(stream: DataFrame, sink: type[DataSource], options: Mapping[str, str]) -> DataStreamWriter:
    session = stream.sparkSession
    if sink.name() not in _registered.setdefault(session, set()):
        session.dataSource.register(sink)
        _registered[session].add(sink.name())
    return stream.writeStream.format(sink.name()).options(**options)
