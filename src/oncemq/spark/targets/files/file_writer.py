"""Writes record batches as Parquet files in a folder, with one folder `column=value` per value of a partition column.

Arrow writes them, batch by batch. As in Spark and Hive, an empty string in a partition column becomes null, because a
folder can't have it as its name.
"""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, DateType, IntegralType, StringType, StructType

from oncemq.protocol import errors
from oncemq.spark.targets.files.disk import Disk

#: Spark, Hive and Arrow give this name to the folder of the rows whose value is null.
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
#: Small batches are buffered up to this size, over all open files, so that files do not have many tiny row groups.
_GROUP_ROWS_MIN = 65_536
_BUFFERED_BYTES_MAX = 64 * 1024 * 1024
_GROUP_ROWS_MAX = 1_048_576
_FOLDERS_MAX = 100_000
_OPEN_FILES_MAX = 200


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file, complete and synced."""

    #: Relative to the given folder, with slashes.
    path: str
    rows: int
    size_bytes: int
    #: The values of the partition columns, as text.
    values: dict[str, str | None]
    #: Minimum, maximum and null counts in the JSON format of Delta tables.
    statistics: str


def local_path(path: str) -> str:
    """The absolute path of a folder, which the driver and the workers share. Raises SettingInvalid for other URLs."""
    path = path.removeprefix("file://")
    if "://" in path or not path:
        raise errors.SettingInvalid(f"{path!r} is not a folder on a local or mounted file system: use one")
    return os.path.abspath(path)


def check_partition_columns(schema: StructType, partition_by: Sequence[str]) -> None:
    """Raises SettingInvalid."""
    for name in partition_by:
        if name not in schema.fieldNames():
            raise errors.SettingInvalid(
                f"there is no column {name!r} to partition by: the columns are {', '.join(schema.fieldNames())}"
            )
        if "/" in name or "=" in name:
            raise errors.SettingInvalid(f"can't partition by {name!r}: the name of a folder can't contain / or =")
        kind = schema[name].dataType
        if not isinstance(kind, StringType | IntegralType | BooleanType | DateType):
            raise errors.SettingInvalid(
                f"can't partition by {name!r}, a column of type {kind.simpleString()}: use a string, an integer, "
                "a date or a boolean"
            )
    if len(set(partition_by)) != len(partition_by):
        raise errors.SettingInvalid(f"a partition column is given twice: {', '.join(partition_by)}")
    if len(partition_by) == len(schema.fields):
        raise errors.SettingInvalid("at least one column must not be a partition column")


def arrow_schema(schema: StructType) -> Any:
    """All columns are nullable, and times are in UTC, for any time zone of the session."""
    fields = [field.with_nullable(True) for field in to_arrow_schema(schema, timezone="UTC")]
    return pa.schema(fields)


class FileWriter(msgspec.Struct, frozen=True, kw_only=True):
    """Writes the rows of one attempt of a task."""

    schema: Any
    partition_by: tuple[str, ...]
    folder: str
    #: The names of all its files begin with it, and no others do.
    stem: str
    suffix: str
    disk: Disk

    def write(self, batches: Iterable[Any]) -> list[DataFile]:
        """Write all rows and sync the content of the files. If this raises, all files are deleted."""
        filled = (self._conform(batch) for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return []
        try:
            return self._write(itertools.chain([first], filled), _group_rows(first))
        except BaseException:
            self._delete_files()
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
        # It imports pandas, and the process that commits needs neither.
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
            # The names are unique to this attempt.
            existing_data_behavior="overwrite_or_ignore",
            file_visitor=visited.append,
            # Without preserve_order, one thread does not keep the rows in order either.
            use_threads=False,
            preserve_order=True,
            max_partitions=_FOLDERS_MAX,
            max_open_files=_OPEN_FILES_MAX,
            min_rows_per_group=group_rows,
            max_rows_per_group=_GROUP_ROWS_MAX,
        )

    def _conform(self, batch: Any) -> Any:
        if batch.schema != self.schema:
            batch = self._with_all_columns(batch).cast(self.schema)
        for name in self.partition_by:
            batch = _empty_strings_to_null(batch, batch.schema.get_field_index(name))
        return batch

    def _with_all_columns(self, batch: Any) -> Any:
        """The columns in the order of the schema. Those that the rows do not have are null."""
        if batch.schema.names == self.schema.names:
            return batch
        given = set(batch.schema.names)
        columns = [
            batch.column(field.name) if field.name in given else pa.nulls(batch.num_rows, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, names=self.schema.names)

    def _delete_files(self) -> None:
        pattern = os.path.join(glob.escape(self.folder), "**", f"{glob.escape(self.stem)}-*")
        for path in glob.glob(pattern, recursive=True, include_hidden=True):
            self.disk.remove_file(path)


def _empty_strings_to_null(batch: Any, index: int) -> Any:
    field, column = batch.schema.field(index), batch.column(index)
    if not pa.types.is_string(field.type):
        return batch
    return batch.set_column(index, field, pc.if_else(pc.equal(column, ""), pa.scalar(None, field.type), column))


def _group_rows(first: Any) -> int:
    """The number of rows to buffer before they are written: fewer if rows are large. Estimated from the first batch."""
    row_bytes: int = max(1, first.nbytes // first.num_rows)
    return max(1, min(_GROUP_ROWS_MIN, _BUFFERED_BYTES_MAX // row_bytes))


def _values(path: str) -> dict[str, str | None]:
    """
    >>> _values("day=2026-01-01/place=a%20b/part-0.parquet")
    {'day': '2026-01-01', 'place': 'a b'}
    """
    pairs = (folder.partition("=") for folder in path.split("/")[:-1])
    return {name: None if value == _NULL_FOLDER else unquote(value) for name, _, value in pairs}
