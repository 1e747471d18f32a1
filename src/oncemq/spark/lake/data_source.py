"""An archive as a data source of Spark: `oncemq_lake`, with the option `plan`, the path of a file on the driver.

Each part of the plan is a partition, in the order of the plan, with rows in the order of their offsets. So Spark does
not sort rows between tasks, and the sink publishes the partitions in this order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from oncemq.arrow.columns import TYPES
from oncemq.protocol import errors
from oncemq.spark.lake.files import open_archive_file
from oncemq.spark.lake.plan import Part, Plan
from oncemq.spark.lake.selection import Selection
from oncemq.spark.targets.objects.location import is_object_url

#: The columns that are restored.
RESTORED = ("key", "value", "headers", "timestamp", "schema_version")
_KINDS: dict[str, DataType] = {
    "headers": MapType(StringType(), BinaryType()),
    "timestamp": TimestampType(),
    "schema_version": IntegerType(),
}
ROWS = StructType([StructField(name, _KINDS.get(name, BinaryType())) for name in RESTORED])
_BATCH_ROWS = 10_000
_ARROW = pa.schema([(name, TYPES[name]) for name in RESTORED])
_STORED = pa.schema([("topic_id", pa.int64()), ("offset", pa.int64()), *_ARROW])


class LakeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "oncemq_lake"

    def schema(self) -> StructType:
        return ROWS

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return LakeReader(msgspec.json.decode(Path(self.options["plan"]).read_bytes(), type=Plan))


class PartPartition(InputPartition):
    def __init__(self, part: Part) -> None:
        super().__init__(None)
        self.part = part


class LakeReader(DataSourceReader):
    def __init__(self, plan: Plan) -> None:
        self._parts = plan.parts
        self._selection = plan.selection

    def __getstate__(self) -> dict[str, Any]:
        """A task does not need the parts of others."""
        return {"_parts": (), "_selection": self._selection}

    def partitions(self) -> Sequence[InputPartition]:
        return [PartPartition(part) for part in self._parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, PartPartition)
        return read_part(partition.part, self._selection)


def read_part(part: Part, selection: Selection) -> Iterator[Any]:
    """Yield record batches in the order of the offsets. Raises PipelineFailed if the archive was changed."""
    table = _read(part.paths, _filter(part, selection))
    if not _is_rising(table):
        table = table.sort_by("offset")
    if table.num_rows != part.count or not _is_rising(table):
        raise errors.PipelineFailed(
            f"offsets {part.first} to {part.stop - 1} had {part.count} messages when the restore started, but now have "
            f"{table.num_rows} rows: was the archive changed in the meantime?"
        )
    yield from table.select(list(RESTORED)).to_batches(max_chunksize=_BATCH_ROWS)


def _read(paths: Sequence[str], condition: Any) -> Any:
    if not any(is_object_url(path) for path in paths):
        return ds.dataset(list(paths), schema=_STORED, format="parquet").to_table(filter=condition)
    # Arrow reads a dataset from a file system, and there is none for the store.
    tables = [
        pq.read_table(open_archive_file(path), schema=_STORED, filters=condition, partitioning=None) for path in paths
    ]
    return pa.concat_tables(tables)


def _is_rising(table: Any) -> bool:
    return bool((np.diff(table.column("offset").to_numpy()) > 0).all())


def _filter(part: Part, selection: Selection) -> Any:
    offset, time = ds.field("offset"), ds.field("timestamp")
    found = (ds.field("topic_id") == part.topic_id) & (offset >= part.first) & (offset < part.stop)
    if selection.since_us is not None:
        found &= time >= pa.scalar(selection.since_us, TYPES["timestamp"])
    if selection.until_us is not None:
        found &= time < pa.scalar(selection.until_us, TYPES["timestamp"])
    return found
