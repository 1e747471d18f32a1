"""Which files an archive consists of at this moment, each with its topic and day."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from oncemq.protocol import errors
from oncemq.spark.lake import layout
from oncemq.spark.targets.files.commit_log import LastBatch, Manifest
from oncemq.spark.targets.files.disk import Disk
from oncemq.spark.targets.files.file_writer import local_path


class ArchiveFile(msgspec.Struct, frozen=True):
    path: str
    topic: str
    #: As 2026-01-31.
    date: str


def files_of(folder: str) -> list[ArchiveFile]:
    """In no particular order. Raises PipelineInvalid where there is no archive, and PipelineFailed for half a batch."""
    root = local_path(folder)
    kind = layout.format_of(root)
    if kind is None:
        raise errors.PipelineInvalid(f"{folder} is no archive: it holds neither a Delta table nor folders `topic=…`")
    return list(_of_delta(root) if kind == "delta" else _of_parquet(root))


def _of_delta(root: str) -> Iterator[ArchiveFile]:
    import pyarrow.dataset as ds
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(root)
        fragments = list(table.to_pyarrow_dataset().get_fragments())
    except DeltaError as error:
        raise errors.PipelineFailed(f"the Delta table {root} can't be read: {error}") from error
    if table.metadata().partition_columns != list(layout.PARTITION_BY):
        raise errors.PipelineInvalid(f"the Delta table {root} is no archive: it is not partitioned by topic and date")
    for fragment in fragments:
        keys = ds.get_partition_keys(fragment.partition_expression)
        yield ArchiveFile(os.path.join(root, fragment.path), keys["topic"], keys["date"].isoformat())


def _of_parquet(root: str) -> list[ArchiveFile]:
    with contextlib.ExitStack() as stack:
        for publishing in Path(root, "_oncemq").glob("*"):
            _wait_for(publishing, stack)
            _refuse_half_a_batch(publishing)
        paths = Path(root).glob("topic=*/date=*/*.parquet")
        return [
            ArchiveFile(str(path), layout.topic_of(path.parts[-3]), path.parts[-2].removeprefix("date="))
            for path in paths
        ]


def _wait_for(publishing: Path, stack: contextlib.ExitStack) -> None:
    """Until no run is in the middle of publishing a batch, and none begins."""
    # Where nothing can be written, nobody archives.
    with contextlib.suppress(OSError):
        stack.enter_context(Disk().locked(str(publishing / "lock")))


def _refuse_half_a_batch(publishing: Path) -> None:
    disk = Disk()
    manifest = disk.read_file(str(publishing / "manifest.json"))
    if manifest is None:
        return
    last = disk.read_file(str(publishing / "last.json"))
    done = -1 if last is None else msgspec.json.decode(last, type=LastBatch).batch
    if msgspec.json.decode(manifest, type=Manifest).batch > done:
        raise errors.PipelineFailed(
            f"a run of the archive was cut off while it published a batch ({publishing}); archive again to finish it"
        )
