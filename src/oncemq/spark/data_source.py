"""`format("oncemq")`: the name and columns that Spark sees, and the readers and writers.

Spark starts a process only to ask for the columns. Source and sink have large dependencies, so they are imported on
first use.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from oncemq.spark.options import SourceOptions, sink_options, source_options
from oncemq.spark.schema import SPARK_TYPES


class OnceMQSource(DataSource):
    """Topics as tables and streams.

    >>> spark.read.format("oncemq").option("topic", "orders").load()
    """

    @classmethod
    def name(cls) -> str:
        return "oncemq"

    def schema(self) -> str | StructType:
        options = source_options(self.options, is_stream=None)
        if options.typed is not None:
            from oncemq.spark.typed.reading import typed_struct

            return typed_struct(options)
        return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from oncemq.spark.source.source import BatchReader

        return BatchReader(self._source_options(schema, is_stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's signature
        from oncemq.spark.source.source import StreamReader

        return StreamReader(self._source_options(schema, is_stream=True))

    def _source_options(self, schema: StructType, *, is_stream: bool) -> SourceOptions:
        options = source_options(self.options, is_stream=is_stream)
        if options.typed is None:
            return options
        from oncemq.spark.typed.reading import pinned

        return pinned(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from oncemq.spark.sink.writers import BatchWriter

        return BatchWriter(sink_options(self.options, is_stream=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        from oncemq.spark.sink.writers import StreamWriter

        return StreamWriter(sink_options(self.options, is_stream=True), schema)
