"""A Delta table as a streaming sink: `oncemq_delta`, with the options `path`, `partitions` and `storage`.

Tasks write Parquet files directly into the table's folder. Readers only read files that the table's log names. Files of
failed attempts stay until the table is vacuumed (`DeltaTable.vacuum(full=True)`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from oncemq.protocol import errors
from oncemq.spark.option_names import STREAM_SINK
from oncemq.spark.raw_options import RawOptions
from oncemq.spark.targets.declarations import DeltaTarget
from oncemq.spark.targets.delta.table import Table, last_batch
from oncemq.spark.targets.files.disk import Disk
from oncemq.spark.targets.files.file_writer import (
    DataFile,
    FileWriter,
    arrow_schema,
    check_partition_columns,
)
from oncemq.spark.targets.files.folder import LocalFolder
from oncemq.spark.targets.objects.location import decode_storage, encode_storage, is_object_url, resolve_settings
from oncemq.spark.targets.objects.object_folder import ObjectFolder
from oncemq.spark.targets.open_folder import open_folder
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
        RawOptions(self.options, ("path", "partitions", "storage"), sparks=STREAM_SINK)
        columns = decode_columns(self.options, "partitions")
        target = DeltaTarget(path=self.options["path"], partition_by=columns, storage=decode_storage(self.options))
        return DeltaWriter(target, schema, checkpoint_of(self.options))


def prepare(target: DeltaTarget, schema: StructType) -> dict[str, str]:
    """Check the target on the driver, create its folder, and return the sink's options. Raises SettingInvalid."""
    check_partition_columns(schema, target.partition_by)
    disk = Disk()
    folder = open_folder(target.path, target.storage, disk)
    table = Table(folder.url, schema, target.partition_by, disk, storage_of(target))
    if target.evolve == "add":
        table.add_columns()
    else:
        table.check(table.open())
    folder.prepare()
    return {
        "path": folder.url,
        "partitions": encode_columns(target.partition_by),
        "storage": encode_storage(target.storage),
    }


def storage_of(target: DeltaTarget) -> dict[str, str]:
    """The settings of the target's object store; none for a local folder."""
    return resolve_settings(target.storage) if is_object_url(target.path) else {}


class DeltaWriter(StagingWriter):
    def __init__(self, target: DeltaTarget, schema: StructType, checkpoint: str = "") -> None:
        super().__init__(checkpoint)
        self.disk = Disk()
        self._target = target
        self.commits_late = is_object_url(target.path)
        self._spark_schema = schema
        self._schema = arrow_schema(schema)

    def write(self, iterator: Iterator[Any]) -> DeltaOutput:
        identity = self.identify()

        def write(folder: str) -> list[DataFile]:
            return FileWriter(
                schema=self._schema,
                partition_by=self._target.partition_by,
                folder=folder,
                stem=f"part-{identity.partition:05d}-{identity.attempt}",
                suffix=".zstd.parquet",
                disk=self.disk,
            ).write(iterator)

        return DeltaOutput(identity, tuple(self._folder().place("", write)))

    def publish(self, query_id: str, batch_id: int, stages: Sequence[DeltaOutput], content: bytes) -> None:
        files = [file for stage in stages for file in stage.files]
        table = self._table()
        try:
            is_added = table.add(query_id, batch_id, files, content)
        except errors.BatchChanged:
            self._delete_files(stages, file_names=table.file_names())
            raise
        if not is_added:
            # The batch was published before, perhaps with files of these attempts.
            self._delete_files(stages, file_names=table.file_names())

    def discard(self, query_id: str, batch_id: int, stages: Sequence[DeltaOutput]) -> None:
        found = self._table().open()
        is_published = found is not None and last_batch(found, query_id) >= batch_id
        self._delete_files(stages, file_names="\n".join(found.file_uris()) if is_published else "")

    def _delete_files(self, stages: Sequence[DeltaOutput], *, file_names: str) -> None:
        """Delete the files of the attempts that do not occur in the table's file names."""
        for stage in stages:
            if stage.identity.attempt not in file_names:
                self._folder().remove([file.path for file in stage.files])

    def _folder(self) -> LocalFolder | ObjectFolder:
        return open_folder(self._target.path, self._target.storage, self.disk)

    def _table(self) -> Table:
        target = self._target
        return Table(self._folder().url, self._spark_schema, target.partition_by, self.disk, storage_of(target))
