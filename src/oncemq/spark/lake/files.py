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

_LIST_ATTEMPTS = 10


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
    return [
        ArchiveFile(f"{root}/{path}", layout.parse_topic_folder(names[0]), names[1].removeprefix("date="))
        for path in _whole_batches(folder)
        if len(names := path.split("/")) == 3 and names[0].startswith("topic=") and names[1].startswith("date=")
    ]


def _whole_batches(folder: ObjectFolder) -> list[str]:
    """The visible files of complete batches. A store has no lock, so they are listed until no batch was published
    meanwhile. Raises PipelineFailed."""
    batches = _published_batches(folder)
    for _ in range(_LIST_ATTEMPTS):
        paths = [file.path for file in visible_files(folder)]
        before, batches = batches, _published_batches(folder)
        if batches == before:
            return paths
    raise errors.PipelineFailed(f"runs of the archive publish batches in {folder.url} all the time: stop them first")


def _published_batches(folder: ObjectFolder) -> dict[str, int]:
    """The last batch of each query. Its manifest is created before its files, and stays. Raises PipelineFailed if not
    all of them are published."""
    batches: dict[str, int] = {}
    for file in folder.list("_oncemq/"):
        commit_log, is_manifest, name = file.path.partition("/commits/")
        if is_manifest:
            batches[commit_log] = max(batches.get(commit_log, -1), int(name.removesuffix(".json")))
    for commit_log, batch in batches.items():
        if batch > _last_batch(folder.read(f"{commit_log}/last.json")):
            raise _partial_batch(f"{folder.url}/{commit_log}")
    return batches


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
    if msgspec.json.decode(manifest, type=Manifest).batch > _last_batch(disk.read_file(str(commit_log / "last.json"))):
        raise _partial_batch(str(commit_log))


def _last_batch(data: bytes | None) -> int:
    """The last batch that is completely published; -1 = none."""
    return -1 if data is None else msgspec.json.decode(data, type=LastBatch).batch


def _partial_batch(commit_log: str) -> errors.PipelineFailed:
    return errors.PipelineFailed(
        f"a run of the archive is publishing a batch, or was interrupted while it published a batch ({commit_log}); "
        "wait until it ends, or archive again to complete the batch"
    )
