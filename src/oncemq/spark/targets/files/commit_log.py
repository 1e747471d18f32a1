"""The commit of the Parquet sink: staged files become a batch that any reader sees once, whatever crashes when.

    ROOT/part-QUERY-BATCH-INDEX.parquet        published (below `column=value/` where there are partition columns)
    ROOT/_oncemq/QUERY/lock                    held by the one driver that commits
    ROOT/_oncemq/QUERY/last.json               the last batch that is published as a whole
    ROOT/_oncemq/QUERY/manifest.json           the batch that is being published: which file becomes which
    ROOT/_oncemq/QUERY/stage/BATCH/ATTEMPT/…   what one attempt of a task wrote

The manifest's appearance is the commit: from then on the batch consists of its files, and of no others. A replayed
batch may be cut into other partitions, so whoever finds a manifest finishes that one, and drops what it wrote itself.
Everything a file name stands for was synced before the manifest names it.

Readers don't look into folders that begin with an underscore, and staged files don't end in `.parquet`. While the
files of a batch are renamed, one after the other, a reader sees a part of it, but never a row twice.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

import msgspec

from oncemq.protocol import errors
from oncemq.spark.sink.task import TaskIdentity
from oncemq.spark.targets.files.disk import Disk, sync_names, write_atomically

STAGED = ".staged"
_FOLDER = "_oncemq"


class Entry(msgspec.Struct, frozen=True):
    #: Both below the root.
    staged: str
    published: str


class Manifest(msgspec.Struct, frozen=True):
    batch: int
    entries: tuple[Entry, ...]


class Last(msgspec.Struct, frozen=True):
    batch: int


#: An attempt, and its files, below the attempt's folder.
Stage = tuple[str, Sequence[str]]


class Published:
    """What one query has published in one folder."""

    def __init__(self, root: str, query_id: str, disk: Disk) -> None:
        self._root = root
        self._query_id = query_id
        self._disk = disk
        self._folder = os.path.join(root, _FOLDER, query_id)

    # A task.

    def stage_folder(self, identity: TaskIdentity) -> str:
        return os.path.join(self._batch_folder(identity.batch_id), identity.attempt)

    def sync_stage(self, identity: TaskIdentity, paths: Iterable[str]) -> None:
        """The names of the attempt's files, on stable storage when this returns."""
        folder = self.stage_folder(identity)
        sync_names(self._disk, (os.path.dirname(os.path.join(folder, path)) for path in paths), self._root)

    # The driver.

    def commit(self, batch_id: int, stages: Sequence[Stage]) -> None:
        """Publish the batch, unless it is published; stages in the order of their partitions."""
        self._disk.make_folder(self._folder)
        with self._lock():
            self._settle()
            if self._last() < batch_id:
                self._publish(self._manifest_of(batch_id, stages))
            self._clean(batch_id)

    def abort(self, batch_id: int, attempts: Sequence[str]) -> None:
        """Remove what these attempts staged, unless it is a part of the batch."""
        if not os.path.isdir(self._folder):
            return
        with self._lock():
            manifest = self._manifest()
            if manifest is not None and manifest.batch == batch_id:
                return
            for attempt in attempts:
                self._disk.remove_folder(os.path.join(self._batch_folder(batch_id), attempt))

    def _settle(self) -> None:
        """Finish what somebody began to publish."""
        manifest = self._manifest()
        if manifest is None:
            return
        # It may be in the page cache only, and must not vanish after the first file got its name.
        self._disk.sync_folder(self._folder)
        if self._last() < manifest.batch:
            self._finish(manifest)
        self._disk.remove_file(self._path("manifest.json"))

    def _publish(self, manifest: Manifest) -> None:
        if not manifest.entries:
            return
        write_atomically(self._disk, self._path("manifest.json"), msgspec.json.encode(manifest))
        self._finish(manifest)
        self._disk.remove_file(self._path("manifest.json"))

    def _finish(self, manifest: Manifest) -> None:
        for entry in manifest.entries:
            self._rename(entry)
        folders = (os.path.dirname(os.path.join(self._root, entry.published)) for entry in manifest.entries)
        sync_names(self._disk, folders, self._root)
        write_atomically(self._disk, self._path("last.json"), msgspec.json.encode(Last(manifest.batch)))

    def _rename(self, entry: Entry) -> None:
        staged, published = (os.path.join(self._root, path) for path in (entry.staged, entry.published))
        if os.path.exists(staged):
            self._disk.make_folder(os.path.dirname(published))
            self._disk.rename(staged, published)
        elif not os.path.exists(published):
            manifest = self._path("manifest.json")
            raise errors.OnceMQError(
                f"{published} is committed, but neither there nor at {staged}; if you removed it yourself after it was"
                f" published, take it out of {manifest}, and start again"
            )

    def _manifest_of(self, batch_id: int, stages: Sequence[Stage]) -> Manifest:
        folder = os.path.relpath(self._batch_folder(batch_id), self._root)
        staged = [os.path.join(attempt, path) for attempt, paths in stages for path in paths]
        entries = [
            Entry(os.path.join(folder, path), self._published(batch_id, index, path))
            for index, path in enumerate(staged)
        ]
        return Manifest(batch_id, tuple(entries))

    def _published(self, batch_id: int, index: int, path: str) -> str:
        # ATTEMPT/column=value/…/name: the folders in the middle stay.
        folders = path.split("/")[1:-1]
        return os.path.join(*folders, f"part-{self._query_id}-{batch_id:08d}-{index:05d}.parquet")

    def _clean(self, batch_id: int) -> None:
        """Nobody can commit what is staged for this batch or an earlier one."""
        stage = os.path.join(self._folder, "stage")
        if not os.path.isdir(stage):
            return
        for name in os.listdir(stage):
            if name.isdigit() and int(name) <= batch_id:
                self._disk.remove_folder(os.path.join(stage, name))

    # What is there.

    def _last(self) -> int:
        data = self._disk.read_file(self._path("last.json"))
        return -1 if data is None else msgspec.json.decode(data, type=Last).batch

    def _manifest(self) -> Manifest | None:
        data = self._disk.read_file(self._path("manifest.json"))
        return None if data is None else msgspec.json.decode(data, type=Manifest)

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        return self._disk.locked(self._path("lock"))

    def _batch_folder(self, batch_id: int) -> str:
        return os.path.join(self._folder, "stage", str(batch_id))

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)
