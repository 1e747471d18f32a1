"""The columns of a folder of Parquet files, recorded in ROOT/_oncemq/schema.json.

The files themselves can't be trusted for that: each contains the columns of its own query only. The record contains the
columns of all queries that ever wrote to the folder, and it only grows. New files contain all recorded columns, so a
reader that looks at the newest file sees all of them. A folder without a record is recorded from its newest file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from oncemq.protocol import errors
from oncemq.spark.targets.columns import added_columns, extended, nullable
from oncemq.spark.targets.files.folder import Folder, visible_files


class _Record(msgspec.Struct, frozen=True):
    #: In Spark's JSON format.
    columns: dict[str, Any]
    partition_by: tuple[str, ...]

    @property
    def schema(self) -> StructType:
        return StructType.fromJson(self.columns)


def record_columns(folder: Folder, schema: StructType, partition_by: Sequence[str], *, evolve: bool) -> StructType:
    """Record the columns of the rows, and return all recorded columns, which each new file must contain.

    Raises SettingInvalid if readers could not read the rows together with those in the folder."""
    agreed = nullable(schema)

    def change(data: bytes | None) -> bytes:
        nonlocal agreed
        known = _read_newest_file(folder, schema) if data is None else msgspec.json.decode(data, type=_Record)
        if known is not None:
            agreed = _agree(known, folder.url, schema, partition_by, evolve=evolve)
        return msgspec.json.encode(_Record(agreed.jsonValue(), tuple(partition_by)))

    folder.update("_oncemq/schema.json", change)
    return agreed


def _agree(known: _Record, root: str, schema: StructType, partition_by: Sequence[str], *, evolve: bool) -> StructType:
    if known.partition_by != tuple(partition_by):
        found, wanted = (", ".join(names) or "no column" for names in (known.partition_by, partition_by))
        raise errors.SettingInvalid(
            f"the Parquet folder {root} is partitioned by {found}, not by {wanted}: readers could not read both; use "
            "the same columns, or write to another folder"
        )
    return extended(known.schema, added_columns(known.schema, schema, f"the Parquet folder {root}", evolve=evolve))


def _read_newest_file(folder: Folder, schema: StructType) -> _Record | None:
    """What the newest file says. Columns with types that Spark does not have are left out, and so are the types of the
    partition columns, which the names of folders do not contain."""
    newest = max(visible_files(folder), key=lambda file: file.modified_s, default=None)
    if newest is None:
        return None
    partition_by = tuple(name.partition("=")[0] for name in newest.path.split("/")[:-1] if "=" in name)
    with folder.open(newest.path) as file:
        columns = pq.read_schema(file)
    fields = [StructField(field.name, kind) for field in columns if (kind := _spark_type(field.type))]
    known = {field.name for field in fields}
    fields += [field for field in schema.fields if field.name in partition_by and field.name not in known]
    return _Record(nullable(StructType(fields)).jsonValue(), partition_by)


def _spark_type(kind: Any) -> DataType | None:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        # Spark writes its type timestamp without a zone (INT96).
        kind = pa.timestamp("us", "UTC")
    try:
        return from_arrow_type(kind, prefer_timestamp_ntz=True)
    except PySparkException:
        return None
