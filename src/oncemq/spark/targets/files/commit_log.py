"""The commit protocol of the Parquet sink: staged files become a batch that any reader sees once, in spite of crashes.

    ROOT/part-QUERY-BATCH-INDEX.parquet        a published file (inside `column=value/` if there are partition columns)
    ROOT/_oncemq/QUERY/lock                    locked by the driver that commits
    ROOT/_oncemq/QUERY/last.json               the last batch that is completely published, and a digest of its content
    ROOT/_oncemq/QUERY/manifest.json           the batch that is being published: the staged and published file names
    ROOT/_oncemq/QUERY/stage/BATCH/ATTEMPT/…   the files that one attempt of a task wrote

The batch is committed when the manifest appears: from then on it consists of the files of the manifest and of no
others. A replayed batch may have other partitions, so a driver that finds a manifest completes that one, and deletes
the files of its own attempts. All files are synced before the manifest names them.

Readers ignore folders that begin with an underscore, and the names of staged files do not end in `.parquet`. While the
files of a batch are renamed one after the other, a reader sees a part of the batch, but never a row twice.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

import msgspec

from oncemq.protocol import errors
from oncemq.spark.checkpoint.content import refuse_other_content
from oncemq.spark.sink.task import TaskIdentity
from oncemq.spark.targets.files.disk import Disk, sync_names, write_atomically
from oncemq.spark.targets.files.file_writer import DataFile

STAGED = ".staged"
_FOLDER = "_oncemq"


class Entry(msgspec.Struct, frozen=True):
    #: Both paths are relative to the root.
    staged: str
    published: str


class Manifest(msgspec.Struct, frozen=True):
    batch: int
    entries: tuple[Entry, ...]
    #: In hexadecimal, what identifies the content of the batch; "" = it is not known.
    content: str = ""


class LastBatch(msgspec.Struct, frozen=True):
    batch: int
    content: str = ""

    def is_same(self, batch_id: int, content: str) -> bool:
        """Whether this batch was published, as far as its content is known."""
        return not (content and self.content) or (self.batch == batch_id and self.content == content)


#: An attempt, and its files, relative to the attempt's folder.
Stage = tuple[str, Sequence[str]]


def new_manifest(query_id: str, batch_id: int, stages: Sequence[Stage], content: bytes) -> Manifest:
    folder = f"{_FOLDER}/{query_id}/stage/{batch_id}"
    staged = [os.path.join(attempt, path) for attempt, paths in stages for path in paths]
    entries = [
        Entry(os.path.join(folder, path), _published_path(query_id, batch_id, index, path))
        for index, path in enumerate(staged)
    ]
    return Manifest(batch_id, tuple(entries), content.hex())


def _published_path(query_id: str, batch_id: int, index: int, path: str) -> str:
    # Of ATTEMPT/column=value/…/name, the partition folders in the middle are kept.
    folders = path.split("/")[1:-1]
    return os.path.join(*folders, f"part-{query_id}-{batch_id:08d}-{index:05d}.parquet")


class CommitLog:
    """The commits of one query in one folder."""

    def __init__(self, root: str, query_id: str, disk: Disk) -> None:
        self._root = root
        self._query_id = query_id
        self._disk = disk
        self._folder = os.path.join(root, _FOLDER, query_id)

    # Called in a task.

    def stage(self, identity: TaskIdentity, write: Callable[[str], list[DataFile]]) -> list[DataFile]:
        """Let `write` write the files of an attempt into a folder where no reader looks, and sync their names."""
        folder = os.path.join(self._batch_folder(identity.batch_id), identity.attempt)
        files = write(folder)
        sync_names(self._disk, (os.path.dirname(os.path.join(folder, file.path)) for file in files), self._root)
        return files

    # Called on the driver.

    def commit(self, batch_id: int, stages: Sequence[Stage], content: bytes = b"") -> None:
        """Publish the batch, unless it was published before. The stages are in the order of their partitions.

        Raises BatchChanged if the batch, or a later one, was published with other content."""
        self._disk.make_folder(self._folder)
        with self._lock():
            self._complete_manifest()
            last = self._last_batch()
            if last.batch < batch_id:
                self._publish(new_manifest(self._query_id, batch_id, stages, content))
            else:
                refuse_other_content(self._root, batch_id, last.batch, is_same=last.is_same(batch_id, content.hex()))
            self._delete_stages(batch_id)

    def abort(self, batch_id: int, attempts: Sequence[str]) -> None:
        """Delete the files of these attempts, unless the batch was committed."""
        if not os.path.isdir(self._folder):
            return
        with self._lock():
            manifest = self._read_manifest()
            if manifest is not None and manifest.batch == batch_id:
                return
            for attempt in attempts:
                self._disk.remove_folder(os.path.join(self._batch_folder(batch_id), attempt))

    def _complete_manifest(self) -> None:
        """Complete the batch that an earlier commit did not publish completely."""
        manifest = self._read_manifest()
        if manifest is None:
            return
        # The manifest may be in the page cache only, and it must not be lost after the first file is renamed.
        self._disk.sync_folder(self._folder)
        if self._last_batch().batch < manifest.batch:
            self._rename_all(manifest)
        self._disk.remove_file(self._path("manifest.json"))

    def _publish(self, manifest: Manifest) -> None:
        if not manifest.entries:
            return
        write_atomically(self._disk, self._path("manifest.json"), msgspec.json.encode(manifest))
        self._rename_all(manifest)
        self._disk.remove_file(self._path("manifest.json"))

    def _rename_all(self, manifest: Manifest) -> None:
        for entry in manifest.entries:
            self._rename(entry)
        folders = (os.path.dirname(os.path.join(self._root, entry.published)) for entry in manifest.entries)
        sync_names(self._disk, folders, self._root)
        write_atomically(
            self._disk, self._path("last.json"), msgspec.json.encode(LastBatch(manifest.batch, manifest.content))
        )

    def _rename(self, entry: Entry) -> None:
        staged, published = (os.path.join(self._root, path) for path in (entry.staged, entry.published))
        if os.path.exists(staged):
            self._disk.make_folder(os.path.dirname(published))
            self._disk.rename(staged, published)
        elif not os.path.exists(published):
            manifest = self._path("manifest.json")
            raise errors.OnceMQError(
                f"{published} is committed, but neither this file nor {staged} exists; if you deleted it yourself after"
                f" it was published, remove it from {manifest} and start again"
            )

    def _delete_stages(self, batch_id: int) -> None:
        """Delete what is staged for this batch and earlier ones: it can't be committed any more."""
        stage = os.path.join(self._folder, "stage")
        if not os.path.isdir(stage):
            return
        for name in os.listdir(stage):
            if name.isdigit() and int(name) <= batch_id:
                self._disk.remove_folder(os.path.join(stage, name))

    # Called on both.

    def _last_batch(self) -> LastBatch:
        data = self._disk.read_file(self._path("last.json"))
        return LastBatch(-1) if data is None else msgspec.json.decode(data, type=LastBatch)

    def _read_manifest(self) -> Manifest | None:
        data = self._disk.read_file(self._path("manifest.json"))
        return None if data is None else msgspec.json.decode(data, type=Manifest)

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        return self._disk.locked(self._path("lock"))

    def _batch_folder(self, batch_id: int) -> str:
        return os.path.join(self._folder, "stage", str(batch_id))

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)
