"""Lists the files of an archive, each with its topic and day."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from oncemq.protocol import errors
from oncemq.spark.lake import layout
from oncemq.spark.targets.files.commit_log import LastBatch, Manifest
from oncemq.spark.targets.files.disk import Disk
from oncemq.spark.targets.files.folder import visible_files
from oncemq.spark.targets.objects.location import is_object_url, resolve_settings
from oncemq.spark.targets.objects.object_folder import ObjectFolder


class ArchiveFile(msgspec.Struct, frozen=True):
    path: str
    topic: str
    #: In the form 2026-01-31.
    date: str


def list_files(folder: str) -> list[ArchiveFile]:
    """List the files, in no particular order. Raises PipelineInvalid if the folder is not an archive, and
    PipelineFailed if it contains a batch that is not completely published."""
    root = layout.archive_root(folder)
    kind = layout.detect_format(root)
    if kind is None:
        raise errors.PipelineInvalid(
            f"{folder} is not an archive: it contains neither a Delta table nor folders `topic=…`"
        )
    if kind == "delta":
        return list(_delta_files(root))
    return _remote_parquet_files(root) if is_object_url(root) else _parquet_files(root)


def _delta_files(root: str) -> Iterator[ArchiveFile]:
    import pyarrow.dataset as ds
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(root, storage_options=resolve_settings({}) if is_object_url(root) else None)
        fragments = list(table.to_pyarrow_dataset().get_fragments())
    except DeltaError as error:
        raise errors.PipelineFailed(f"the Delta table {root} can't be read: {error}") from error
    if table.metadata().partition_columns != list(layout.PARTITION_BY):
        raise errors.PipelineInvalid(
            f"the Delta table {root} is not an archive: it is not partitioned by topic and date"
        )
    for fragment in fragments:
        keys = ds.get_partition_keys(fragment.partition_expression)
        yield ArchiveFile(os.path.join(root, fragment.path), keys["topic"], keys["date"].isoformat())


def open_archive_file(path: str) -> Any:
    """A file of an archive, for Arrow: a path, or an open file in an object store."""
    if not is_object_url(path):
        return path
    # The names of folders in the path are percent-encoded, and must not be decoded as parts of a URL.
    scheme, _, rest = path.partition("://")
    bucket, _, name = rest.partition("/")
    return ObjectFolder(f"{scheme}://{bucket}", {}).open(name)


def _remote_parquet_files(root: str) -> list[ArchiveFile]:
    folder = ObjectFolder(root, {})
    manifests = [file.path for file in folder.list("_oncemq/") if "/commits/" in file.path]
    for path in manifests:
        _refuse_partial_manifest(folder, path)
    found = []
    for file in visible_files(folder):
        names = file.path.split("/")
        if len(names) == 3 and names[0].startswith("topic=") and names[1].startswith("date="):
            topic, date = layout.parse_topic_folder(names[0]), names[1].removeprefix("date=")
            found.append(ArchiveFile(f"{root}/{file.path}", topic, date))
    return found


def _refuse_partial_manifest(folder: ObjectFolder, path: str) -> None:
    """The manifest of a batch stays; the batch is partial if it is above the last one that is published."""
    commit_log = path.rpartition("/commits/")[0]
    last = folder.read(f"{commit_log}/last.json")
    done = -1 if last is None else msgspec.json.decode(last, type=LastBatch).batch
    if int(path.rpartition("/")[2].removesuffix(".json")) > done:
        raise _partial_batch(f"{folder.url}/{commit_log}")


def _parquet_files(root: str) -> list[ArchiveFile]:
    with contextlib.ExitStack() as stack:
        for commit_log in Path(root, "_oncemq").glob("*/"):
            # Wait until no run is publishing a batch, and let none begin. A folder that is not writable can't be
            # locked, but there nothing is archived either.
            with contextlib.suppress(OSError):
                stack.enter_context(Disk().locked(str(commit_log / "lock")))
            _refuse_partial_batch(commit_log)
        paths = Path(root).glob("topic=*/date=*/*.parquet")
        return [
            ArchiveFile(str(path), layout.parse_topic_folder(path.parts[-3]), path.parts[-2].removeprefix("date="))
            for path in paths
        ]


def _refuse_partial_batch(commit_log: Path) -> None:
    disk = Disk()
    manifest = disk.read_file(str(commit_log / "manifest.json"))
    if manifest is None:
        return
    last = disk.read_file(str(commit_log / "last.json"))
    done = -1 if last is None else msgspec.json.decode(last, type=LastBatch).batch
    if msgspec.json.decode(manifest, type=Manifest).batch > done:
        raise _partial_batch(str(commit_log))


def _partial_batch(commit_log: str) -> errors.PipelineFailed:
    return errors.PipelineFailed(
        f"a run of the archive was interrupted while it published a batch ({commit_log}); archive again to complete "
        "the batch"
    )
