"""A Delta table as a streaming sink: `oncemq_delta`, with the options `path` and `partitions`.

Tasks write Parquet files directly into the table's folder. Readers only read files that the table's log names. Files of
failed attempts stay until the table is vacuumed (`DeltaTable.vacuum(full=True)`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from oncemq.spark.option_names import STREAM_SINK
from oncemq.spark.raw_options import RawOptions
from oncemq.spark.targets.declarations import DeltaTarget
from oncemq.spark.targets.delta.table import Table, last_batch, open_table
from oncemq.spark.targets.files.disk import Disk, sync_names
from oncemq.spark.targets.files.file_writer import (
    DataFile,
    FileWriter,
    arrow_schema,
    check_partition_columns,
    local_path,
)
from oncemq.spark.targets.staging_writer import (
    StagedOutput,
    StagingWriter,
    checkpoint_of,
    decode_columns,
    encode_columns,
    refuse_overwrite,
)


class DeltaOutput(StagedOutput, frozen=True):
    #: Paths are relative to the table's folder.
    files: tuple[DataFile, ...]


class DeltaSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "oncemq_delta"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DeltaWriter:  # noqa: N802
        refuse_overwrite(overwrite)
        RawOptions(self.options, ("path", "partitions"), sparks=STREAM_SINK)
        columns = decode_columns(self.options, "partitions")
        target = DeltaTarget(path=self.options["path"], partition_by=columns)
        return DeltaWriter(target, schema, checkpoint_of(self.options))


def prepare(target: DeltaTarget, schema: StructType) -> dict[str, str]:
    """Check the target on the driver, create its folder, and return the sink's options. Raises SettingInvalid."""
    check_partition_columns(schema, target.partition_by)
    root, disk = local_path(target.path), Disk()
    table = Table(root, schema, target.partition_by, disk)
    if target.evolve == "add":
        table.add_columns()
    else:
        table.check(open_table(root))
    disk.make_folder(root)
    disk.sync_folder(os.path.dirname(root))
    return {"path": root, "partitions": encode_columns(target.partition_by)}


class DeltaWriter(StagingWriter):
    def __init__(self, target: DeltaTarget, schema: StructType, checkpoint: str = "") -> None:
        super().__init__(checkpoint)
        self.disk = Disk()
        self._root = local_path(target.path)
        self._partition_by = target.partition_by
        self._spark_schema = schema
        self._schema = arrow_schema(schema)

    def write(self, iterator: Iterator[Any]) -> DeltaOutput:
        identity = self.identify()
        writer = FileWriter(
            schema=self._schema,
            partition_by=self._partition_by,
            folder=self._root,
            stem=f"part-{identity.partition:05d}-{identity.attempt}",
            suffix=".zstd.parquet",
            disk=self.disk,
        )
        files = tuple(writer.write(iterator))
        sync_names(self.disk, (os.path.dirname(os.path.join(self._root, file.path)) for file in files), self._root)
        return DeltaOutput(identity, files)

    def publish(self, query_id: str, batch_id: int, stages: Sequence[DeltaOutput], content: bytes) -> None:
        files = [file for stage in stages for file in stage.files]
        table = Table(self._root, self._spark_schema, self._partition_by, self.disk)
        if not table.add(query_id, batch_id, files, content):
            # The batch was published before, perhaps with files of these attempts.
            self._delete_files(stages, file_names=table.file_names())

    def discard(self, query_id: str, batch_id: int, stages: Sequence[DeltaOutput]) -> None:
        found = open_table(self._root)
        is_published = found is not None and last_batch(found, query_id) >= batch_id
        self._delete_files(stages, file_names="\n".join(found.file_uris()) if is_published else "")

    def _delete_files(self, stages: Sequence[DeltaOutput], *, file_names: str) -> None:
        """Delete the files of the attempts that do not occur in the table's file names."""
        for stage in stages:
            if stage.identity.attempt not in file_names:
                for file in stage.files:
                    self.disk.remove_file(os.path.join(self._root, file.path))
