"""A folder of Parquet files as a streaming sink: `oncemq_parquet`, with the options `path`,
`partitions` and `columns`, the columns of its files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from oncemq.spark.option_names import STREAM_SINK
from oncemq.spark.raw_options import RawOptions
from oncemq.spark.targets.declarations import ParquetTarget
from oncemq.spark.targets.files.commit_log import STAGED, CommitLog
from oncemq.spark.targets.files.disk import Disk
from oncemq.spark.targets.files.file_writer import FileWriter, arrow_schema, check_partition_columns, local_path
from oncemq.spark.targets.files.schema_record import record_columns
from oncemq.spark.targets.staging_writer import (
    StagedOutput,
    StagingWriter,
    checkpoint_of,
    decode_columns,
    encode_columns,
    refuse_overwrite,
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
        RawOptions(self.options, ("path", "partitions", "columns"), sparks=STREAM_SINK)
        target = ParquetTarget(path=self.options["path"], partition_by=decode_columns(self.options, "partitions"))
        return ParquetWriter(
            target, StructType.fromJson(json.loads(self.options["columns"])), checkpoint_of(self.options)
        )


def prepare(target: ParquetTarget, schema: StructType, disk: Disk | None = None) -> dict[str, str]:
    """Check the target on the driver, create its folder, record its columns, and return the sink's options. Raises
    SettingInvalid."""
    check_partition_columns(schema, target.partition_by)
    root, disk = local_path(target.path), disk or Disk()
    disk.make_folder(root)
    disk.sync_folder(os.path.dirname(root))
    columns = record_columns(disk, root, schema, target.partition_by, evolve=target.evolve == "add")
    return {"path": root, "partitions": encode_columns(target.partition_by), "columns": columns.json()}


class ParquetWriter(StagingWriter):
    def __init__(self, target: ParquetTarget, schema: StructType, checkpoint: str = "") -> None:
        super().__init__(checkpoint)
        self.disk = Disk()
        self._root = local_path(target.path)
        self._partition_by = target.partition_by
        self._schema = arrow_schema(schema)

    def write(self, iterator: Iterator[Any]) -> ParquetOutput:
        identity = self.identify()
        commit_log = self._commit_log(identity.query_id)
        writer = FileWriter(
            schema=self._schema,
            partition_by=self._partition_by,
            folder=commit_log.stage_folder(identity),
            stem="part",
            suffix=STAGED,
            disk=self.disk,
        )
        paths = tuple(file.path for file in writer.write(iterator))
        commit_log.sync_stage(identity, paths)
        return ParquetOutput(identity, paths)

    def publish(self, query_id: str, batch_id: int, stages: Sequence[ParquetOutput], content: bytes) -> None:
        staged = [(stage.identity.attempt, stage.paths) for stage in stages]
        self._commit_log(query_id).commit(batch_id, staged, content)

    def discard(self, query_id: str, batch_id: int, stages: Sequence[ParquetOutput]) -> None:
        self._commit_log(query_id).abort(batch_id, [stage.identity.attempt for stage in stages])

    def _commit_log(self, query_id: str) -> CommitLog:
        return CommitLog(self._root, query_id, self.disk)
