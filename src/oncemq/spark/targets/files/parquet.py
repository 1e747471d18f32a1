"""A folder of Parquet files as a streaming sink: `oncemq_parquet`, with the options `path`,
`partitions`, `columns` (the columns of its files) and `storage` (the settings of an object store)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from oncemq.spark.option_names import STREAM_SINK
from oncemq.spark.raw_options import RawOptions
from oncemq.spark.targets.declarations import ParquetTarget
from oncemq.spark.targets.files.commit_log import STAGED, CommitLog
from oncemq.spark.targets.files.disk import Disk
from oncemq.spark.targets.files.file_writer import DataFile, FileWriter, arrow_schema, check_partition_columns
from oncemq.spark.targets.files.schema_record import record_columns
from oncemq.spark.targets.objects.commit_log import ObjectCommitLog
from oncemq.spark.targets.objects.location import decode_storage, encode_storage, is_object_url
from oncemq.spark.targets.objects.object_folder import ObjectFolder
from oncemq.spark.targets.open_folder import open_folder
from oncemq.spark.targets.staging_writer import (
    StagedOutput,
    StagingWriter,
    checkpoint_of,
    decode_columns,
    encode_columns,
    refuse_overwrite,
    require_query,
)


class ParquetOutput(StagedOutput, frozen=True):
    #: Relative to the attempt's folder.
    paths: tuple[str, ...]


class ParquetSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "oncemq_parquet"

    def streamWriter(self, schema: StructType, overwrite: bool) -> ParquetWriter:  # noqa: ARG002, N802
        refuse_overwrite(overwrite)
        RawOptions(self.options, ("path", "partitions", "columns", "storage"), sparks=STREAM_SINK)
        target = ParquetTarget(
            path=self.options["path"],
            partition_by=decode_columns(self.options, "partitions"),
            storage=decode_storage(self.options),
        )
        return ParquetWriter(
            target, StructType.fromJson(json.loads(self.options["columns"])), checkpoint_of(self.options)
        )


def prepare(target: ParquetTarget, schema: StructType, disk: Disk | None = None) -> dict[str, str]:
    """Check the target on the driver, create its folder, record its columns, and return the sink's options. Raises
    SettingInvalid."""
    check_partition_columns(schema, target.partition_by)
    folder = open_folder(target.path, target.storage, disk or Disk())
    folder.prepare()
    columns = record_columns(folder, schema, target.partition_by, evolve=target.evolve == "add")
    return {
        "path": folder.url,
        "partitions": encode_columns(target.partition_by),
        "columns": columns.json(),
        "storage": encode_storage(target.storage),
    }


class ParquetWriter(StagingWriter):
    def __init__(self, target: ParquetTarget, schema: StructType, checkpoint: str = "") -> None:
        super().__init__(checkpoint)
        self.disk = Disk()
        self._target = target
        self.commits_late = is_object_url(target.path)
        self._schema = arrow_schema(schema)

    def write(self, iterator: Iterator[Any]) -> ParquetOutput:
        identity = self.identify()
        require_query(identity.query_id)

        def write(folder: str) -> list[DataFile]:
            return FileWriter(
                schema=self._schema,
                partition_by=self._target.partition_by,
                folder=folder,
                stem="part",
                suffix=STAGED,
                disk=self.disk,
            ).write(iterator)

        files = self._commit_log(identity.query_id).stage(identity, write)
        return ParquetOutput(identity, tuple(file.path for file in files))

    def publish(self, query_id: str, batch_id: int, stages: Sequence[ParquetOutput], content: bytes) -> None:
        staged = [(stage.identity.attempt, stage.paths) for stage in stages]
        self._commit_log(query_id).commit(batch_id, staged, content)

    def discard(self, query_id: str, batch_id: int, stages: Sequence[ParquetOutput]) -> None:
        self._commit_log(query_id).abort(batch_id, [stage.identity.attempt for stage in stages])

    def _commit_log(self, query_id: str) -> CommitLog | ObjectCommitLog:
        folder = open_folder(self._target.path, self._target.storage, self.disk)
        if isinstance(folder, ObjectFolder):
            return ObjectCommitLog(folder, query_id)
        return CommitLog(folder.url, query_id, self.disk)
