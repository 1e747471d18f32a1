"""The commit protocol of the Parquet sink in an object store: the one of files/commit_log.py without lock and rename.

    ROOT/part-QUERY-BATCH-INDEX.parquet        a published file (inside `column=value/` if there are partition columns)
    ROOT/_oncemq/QUERY/commits/BATCH.json      the manifest of a batch: the staged and published file names
    ROOT/_oncemq/QUERY/last.json               the last batch that is completely published, and a digest of its content
    ROOT/_oncemq/QUERY/stage/BATCH/ATTEMPT/…   the files that one attempt of a task wrote

The batch is committed when its manifest appears. It is created with a conditional put, which the store accepts once:
of two drivers, or of a driver and its own repeated request, one manifest remains, and both publish what it names.
Publishing is a copy inside the store, and repeating it changes nothing. So the manifests of the last batches stay: a
driver that was suspended finds the manifest of its batch, even if that was published long ago.

A request whose reply is lost may be executed later. So nothing that a manifest on its way may name is deleted before
the manifest of the batch exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from oncemq.protocol import errors
from oncemq.spark.checkpoint.content import refuse_other_content
from oncemq.spark.sink.task import TaskIdentity
from oncemq.spark.targets.files.commit_log import Entry, LastBatch, Manifest, Stage, new_manifest
from oncemq.spark.targets.files.file_writer import DataFile
from oncemq.spark.targets.objects.object_folder import ObjectFolder

#: The number of manifests that stay.
_MANIFESTS = 100


class ObjectCommitLog:
    """The commits of one query in one folder."""

    def __init__(self, folder: ObjectFolder, query_id: str) -> None:
        self._folder = folder
        self._query_id = query_id

    # Called in a task.

    def stage(self, identity: TaskIdentity, write: Callable[[str], list[DataFile]]) -> list[DataFile]:
        """Let `write` write the files of an attempt, and upload them to where no reader looks."""
        return self._folder.place(self._stage_path(identity.batch_id, identity.attempt), write)

    # Called on the driver.

    def commit(self, batch_id: int, stages: Sequence[Stage], content: bytes = b"") -> None:
        """Publish the batch, unless it was published before. The stages are in the order of their partitions.

        Raises BatchChanged if the batch, or a later one, was published with other content."""
        last = self._last_batch()
        if last.batch < batch_id:
            # Also if there are no files: otherwise a driver that was suspended could still publish some.
            self._publish(self._create(new_manifest(self._query_id, batch_id, stages, content)))
        self._clean(batch_id)
        if last.batch >= batch_id:
            is_same = last.is_same(batch_id, content.hex())
            refuse_other_content(self._folder.url, batch_id, last.batch, is_same=is_same)

    def abort(self, batch_id: int, attempts: Sequence[str]) -> None:
        """Delete the files of these attempts, unless the batch was committed. Only for a batch of which no commit was
        requested."""
        if self._folder.read(self._path(f"commits/{batch_id:08d}.json")) is not None:
            return
        for attempt in attempts:
            self._remove_all(self._stage_path(batch_id, attempt))

    def _create(self, manifest: Manifest) -> Manifest:
        """Create the manifest of a batch, and return it, or the one that exists already."""
        path = self._path(f"commits/{manifest.batch:08d}.json")
        if self._folder.create(path, msgspec.json.encode(manifest)):
            return manifest
        raw = self._folder.read(path)
        if raw is None:
            raise errors.OnceMQError(f"{self._folder.url}/{path} disappeared; start again")
        found = msgspec.json.decode(raw, type=Manifest)
        is_same = LastBatch(found.batch, found.content).is_same(manifest.batch, manifest.content)
        refuse_other_content(self._folder.url, manifest.batch, found.batch, is_same=is_same)
        return found

    def _publish(self, manifest: Manifest) -> None:
        for entry in manifest.entries:
            self._publish_file(entry)
        data = msgspec.json.encode(LastBatch(manifest.batch, manifest.content))

        def forward(before: bytes | None) -> bytes:
            is_later = before is not None and msgspec.json.decode(before, type=LastBatch).batch >= manifest.batch
            return before if before is not None and is_later else data

        self._folder.update(self._path("last.json"), forward)

    def _publish_file(self, entry: Entry) -> None:
        # The name of a published file is unique to its manifest, so an existing one is the same file.
        if self._folder.exists(entry.published) or self._folder.copy(entry.staged, entry.published):
            return
        if self._folder.exists(entry.published):
            return
        raise errors.OnceMQError(
            f"{self._folder.url}/{entry.published} is committed, but neither this file nor {entry.staged} exists; if "
            "you deleted it yourself after it was published, remove it from the manifest in "
            f"{self._path('commits')} and start again"
        )

    def _clean(self, batch_id: int) -> None:
        """Delete what is staged for this batch and earlier ones, which have manifests, and the oldest manifests."""
        for number in self._numbers("stage"):
            if number <= batch_id:
                self._remove_all(self._path(f"stage/{number}"))
        old = [number for number in self._numbers("commits") if number <= batch_id - _MANIFESTS]
        self._folder.remove([self._path(f"commits/{number:08d}.json") for number in old])

    def _numbers(self, kind: str) -> list[int]:
        """The batches that have files of this kind."""
        prefix = self._path(kind) + "/"
        names = {file.path.removeprefix(prefix).partition("/")[0] for file in self._folder.list(prefix)}
        return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit())

    def _remove_all(self, prefix: str) -> None:
        self._folder.remove([file.path for file in self._folder.list(prefix + "/")])

    def _last_batch(self) -> LastBatch:
        data = self._folder.read(self._path("last.json"))
        return LastBatch(-1) if data is None else msgspec.json.decode(data, type=LastBatch)

    def _stage_path(self, batch_id: int, path: str) -> str:
        return self._path(f"stage/{batch_id}/{path}")

    def _path(self, name: str) -> str:
        return f"_oncemq/{self._query_id}/{name}"
