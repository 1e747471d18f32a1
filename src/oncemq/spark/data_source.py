"""`format("oncemq")`: the names and columns that Spark sees, and who does the work."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from oncemq.spark.options import sink_options, source_options
from oncemq.spark.sink import BatchWriter, StreamWriter
from oncemq.spark.source import BatchReader, StreamReader

SPARK_TYPES = {
    "topic": "string",
    "offset": "bigint",
    "key": "binary",
    "value": "binary",
    "headers": "map<string, binary>",
    "timestamp": "timestamp",
    "idempotency_key": "string",
}


class OnceMQSource(DataSource):
    """Topics as tables and streams.

    >>> spark.read.format("oncemq").option("topic", "orders").load()
    """

    @classmethod
    def name(cls) -> str:
        return "oncemq"

    def schema(self) -> str:
        columns = source_options(self.options, is_stream=False).columns
        return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in columns)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return BatchReader(source_options(self.options, is_stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's signature
        return StreamReader(source_options(self.options, is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(sink_options(self.options, is_stream=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        return StreamWriter(sink_options(self.options, is_stream=True), schema)
