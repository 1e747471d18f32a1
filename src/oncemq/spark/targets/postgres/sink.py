"""A PostgreSQL table as a streaming sink: `oncemq_postgres`, with the options `url`, `table` and `json`.

Spark converts arrays, maps and structs to JSON before the rows reach the sink.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import ArrayType, MapType, StructType

from oncemq.protocol import errors
from oncemq.spark.option_names import STREAM_SINK
from oncemq.spark.raw_options import RawOptions
from oncemq.spark.targets.declarations import PostgresTarget
from oncemq.spark.targets.staging_writer import (
    StagedOutput,
    StagingWriter,
    checkpoint_of,
    decode_columns,
    encode_columns,
    refuse_overwrite,
)

if TYPE_CHECKING:
    from oncemq.spark.targets.postgres.batches import PostgresBatches


class PostgresOutput(StagedOutput, frozen=True):
    rows: int


class PostgresSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "oncemq_postgres"

    def streamWriter(self, schema: StructType, overwrite: bool) -> PostgresWriter:  # noqa: N802
        refuse_overwrite(overwrite)
        RawOptions(self.options, ("url", "table", "json"), sparks=STREAM_SINK)
        target = PostgresTarget(url=self.options["url"], table=self.options["table"])
        return PostgresWriter(target, schema, decode_columns(self.options, "json"), checkpoint_of(self.options))


def prepare(target: PostgresTarget, schema: StructType) -> dict[str, str]:
    """Check the target on the driver, create the tables, and return the sink's options. Raises SettingInvalid."""
    json_columns = _nested_columns(schema)
    with _batches(target, schema, json_columns) as batches:
        batches.create_tables()
    return {"url": target.url, "table": target.table, "json": encode_columns(json_columns)}


def nested_to_json(stream: DataFrame) -> DataFrame:
    """Convert arrays, maps and structs to JSON. Bytes inside them become base64."""
    options = {"ignoreNullFields": "false"}
    texts = {name: f.to_json(f.col(_quoted(name)), options) for name in _nested_columns(stream.schema)}
    return stream.withColumns(texts) if texts else stream


def _nested_columns(schema: StructType) -> list[str]:
    return [field.name for field in schema.fields if isinstance(field.dataType, ArrayType | MapType | StructType)]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@contextmanager
def _batches(target: PostgresTarget, schema: StructType, json_columns: Sequence[str]) -> Iterator[PostgresBatches]:
    if importlib.util.find_spec("psycopg") is None:
        raise errors.MissingExtra('psycopg is not installed: pip install "oncemq[postgres]"')
    from oncemq.spark.targets.postgres.batches import PostgresBatches
    from oncemq.spark.targets.postgres.table import open_connection, prepare_table, table_columns

    columns = table_columns(schema, json_columns)
    with open_connection(target.url) as connection:
        table = prepare_table(connection, target.table, columns, create=target.create, evolve=target.evolve == "add")
        yield PostgresBatches(connection, table, columns)


class PostgresWriter(StagingWriter):
    def __init__(
        self, target: PostgresTarget, schema: StructType, json_columns: Sequence[str] = (), checkpoint: str = ""
    ) -> None:
        super().__init__(checkpoint)
        self._target = target
        self._schema = schema
        self._json_columns = tuple(json_columns)

    def write(self, iterator: Iterator[Any]) -> PostgresOutput:
        identity = self.identify()
        with self._batches() as batches:
            return PostgresOutput(identity, batches.stage(identity, iterator))

    def publish(self, query_id: str, batch_id: int, stages: Sequence[PostgresOutput], content: bytes) -> None:
        with self._batches() as batches:
            batches.publish(query_id, batch_id, [(stage.identity.attempt, stage.rows) for stage in stages], content)

    def discard(self, query_id: str, batch_id: int, stages: Sequence[PostgresOutput]) -> None:  # noqa: ARG002
        with self._batches() as batches:
            batches.discard(stage.identity.attempt for stage in stages)

    def _batches(self) -> Any:
        return _batches(self._target, self._schema, self._json_columns)
