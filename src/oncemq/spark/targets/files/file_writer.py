"""Record batches as Parquet files in a folder, with one folder `column=value` per value of a partition column.

Arrow does the work, batch by batch. As Spark and Hive have it, an empty text in a partition column becomes null:
a folder can't be named after it.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, DataType, DateType, IntegralType, StringType, StructType

from oncemq.protocol import errors
from oncemq.spark.targets.files.disk import Disk

#: What Spark, Hive and Arrow call the folder of the rows that have no value.
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
#: Small batches are gathered up to here, in all open files together, so that readers don't meet many tiny row groups.
_GROUP_ROWS_MIN = 65_536
_GATHERED_BYTES_MAX = 64 * 1024 * 1024
_GROUP_ROWS_MAX = 1_048_576
_FOLDERS_MAX = 100_000
_OPEN_FILES_MAX = 200


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file, complete and synced."""

    #: Below the folder that was given, with slashes.
    path: str
    rows: int
    size_bytes: int
    #: Of the partition columns, as text.
    values: dict[str, str | None]
    #: Smallest, largest and missing values, as Delta tables have them in JSON.
    statistics: str


def local_path(path: str) -> str:
    """The absolute path of a folder of this file system, which driver and workers share."""
    path = path.removeprefix("file://")
    if "://" in path or not path:
        raise errors.SettingInvalid(f"a folder on a local or mounted file system is wanted, not {path!r}")
    return os.path.abspath(path)


def check_partition_columns(schema: StructType, partition_by: Sequence[str]) -> None:
    for name in partition_by:
        if name not in schema.fieldNames():
            raise errors.SettingInvalid(f"there is no column {name!r} to partition by: {_names(schema)}")
        if "/" in name or "=" in name:
            raise errors.SettingInvalid(f"the column {name!r} can't name folders")
        _check_partition_type(name, schema[name].dataType)
    if len(set(partition_by)) != len(partition_by):
        raise errors.SettingInvalid(f"a column is there twice to partition by: {', '.join(partition_by)}")
    if len(partition_by) == len(schema.fields):
        raise errors.SettingInvalid("at least one column must not be a partition column")


def _check_partition_type(name: str, kind: DataType) -> None:
    if not isinstance(kind, StringType | IntegralType | BooleanType | DateType):
        text = f"can't partition by {name!r}, a column of type {kind.simpleString()}: take text, a whole number, a date"
        raise errors.SettingInvalid(f"{text} or a boolean")


def _names(schema: StructType) -> str:
    return "the columns are " + ", ".join(schema.fieldNames())


def arrow_schema(schema: StructType) -> Any:
    """Every column may hold nulls, and times are in UTC, whatever the session's time zone is."""
    fields = [field.with_nullable(True) for field in to_arrow_schema(schema, timezone="UTC")]
    return pa.schema(fields)


class FileWriter(msgspec.Struct, frozen=True, kw_only=True):
    """How one attempt of a task writes its rows."""

    schema: Any
    partition_by: tuple[str, ...]
    folder: str
    #: Every file's name begins with it; nobody else's does.
    stem: str
    suffix: str
    disk: Disk

    def write(self, batches: Iterable[Any]) -> list[DataFile]:
        """All files, complete and their content synced; none if this raises, and none for no rows."""
        filled = (self._conform(batch) for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return []
        try:
            return self._write(_chained(first, filled), _group_rows(first))
        except BaseException:
            self._remove()
            raise

    def _write(self, batches: Iterator[Any], group_rows: int) -> list[DataFile]:
        from oncemq.spark.targets.delta.statistics import statistics

        visited: list[Any] = []
        self._write_dataset(batches, group_rows, visited)
        done = []
        for file in visited:
            self.disk.sync_file(file.path)
            path = os.path.relpath(file.path, self.folder)
            rows = file.metadata.num_rows
            text = statistics(file.metadata, self.schema)
            values = _values(path)
            done.append(DataFile(path=path, rows=rows, size_bytes=file.size, values=values, statistics=text))
        return done

    def _write_dataset(self, batches: Iterator[Any], group_rows: int, visited: list[Any]) -> None:
        # It brings pandas along, and the process that commits has no use for either.
        import pyarrow.dataset as ds

        parquet = ds.ParquetFileFormat()
        columns = pa.schema([self.schema.field(name) for name in self.partition_by])
        ds.write_dataset(
            pa.RecordBatchReader.from_batches(self.schema, batches),
            self.folder,
            basename_template=f"{self.stem}-{{i}}{self.suffix}",
            format=parquet,
            file_options=parquet.make_write_options(compression="zstd"),
            partitioning=ds.partitioning(columns, flavor="hive"),
            # The names are of this attempt alone.
            existing_data_behavior="overwrite_or_ignore",
            file_visitor=visited.append,
            # One thread alone does not keep the rows in order.
            use_threads=False,
            preserve_order=True,
            max_partitions=_FOLDERS_MAX,
            max_open_files=_OPEN_FILES_MAX,
            min_rows_per_group=group_rows,
            max_rows_per_group=_GROUP_ROWS_MAX,
        )

    def _conform(self, batch: Any) -> Any:
        if batch.schema != self.schema:
            batch = batch.cast(self.schema)
        for name in self.partition_by:
            batch = _without_empty_texts(batch, batch.schema.get_field_index(name))
        return batch

    def _remove(self) -> None:
        pattern = os.path.join(glob.escape(self.folder), "**", f"{glob.escape(self.stem)}-*")
        for path in glob.glob(pattern, recursive=True, include_hidden=True):
            self.disk.remove_file(path)


def _without_empty_texts(batch: Any, index: int) -> Any:
    field, column = batch.schema.field(index), batch.column(index)
    if not pa.types.is_string(field.type):
        return batch
    return batch.set_column(index, field, pc.if_else(pc.equal(column, ""), pa.scalar(None, field.type), column))


def _group_rows(first: Any) -> int:
    """Rows that are gathered before they are written: fewer of large ones. By the first batch; the rest is like it."""
    row_bytes: int = max(1, first.nbytes // first.num_rows)
    return max(1, min(_GROUP_ROWS_MIN, _GATHERED_BYTES_MAX // row_bytes))


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _values(path: str) -> dict[str, str | None]:
    """
    >>> _values("day=2026-01-01/place=a%20b/part-0.parquet")
    {'day': '2026-01-01', 'place': 'a b'}
    """
    pairs = (folder.partition("=") for folder in path.split("/")[:-1])
    return {name: None if value == _NULL_FOLDER else unquote(value) for name, _, value in pairs}
