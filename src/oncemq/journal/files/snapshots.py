"""The snapshot files: which exist, and how one is written.

A snapshot overwrites a reserve, which is a zero-filled file, so that there is space for it even on a full disk:

    reserve-4.making  →  reserve-4  →  writing  →  <sequence>  →  reserve-5  →  …
      zero-filled                      chunks       valid          the third newest

The worker syncs `writing`, renames it and syncs the folder; then the snapshot is valid. The two newest are kept: if the
disk damages one, the other leads to the same state. Segments that replay from either of them needs are not released.

There are always three kept snapshots and reserves together: two consecutive snapshots free a full disk, and the second
one needs space too. A reserve should have twice the size of the newest snapshot. A smaller one is deleted only when a
larger one exists, because on a full disk another program could take its space.
"""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from oncemq.disk.contract import Disk, DiskFile
from oncemq.journal.contract import SNAPSHOTS_KEPT
from oncemq.journal.files.allocation import Allocation, is_full, zero_fill
from oncemq.journal.files.layout import SNAPSHOTS, Layout
from oncemq.journal.files.snapshot_codec import (
    HEAD_BYTES,
    SnapshotHead,
    SnapshotInvalid,
    encode_chunk_size,
    encode_head,
    load_snapshot,
    snapshot_path,
)
from oncemq.journal.worker import Task, Worker
from oncemq.protocol import errors

RESERVE_BYTES_MIN = 64 * 1024
#: Kept snapshots and reserves together.
FILES = SNAPSHOTS_KEPT + 1
RESERVE_PREFIX = "reserve-"
WRITING = f"{SNAPSHOTS}/writing"


class FileSnapshotWriter:
    """Writes to the page cache; after `finish` the worker syncs the file."""

    def __init__(self, owner: Snapshots, file: DiskFile, layout: Layout, sequence: int, position: int) -> None:
        self._owner = owner
        self._layout = layout
        self._sequence = sequence
        self._position = position
        self._digest = xxhash.xxh3_64(seed=layout.seed)
        self._chunks = 0
        self.file = file
        self.chunks_bytes = 0
        self.is_open = True
        #: The reserve was too small, and the disk had no more space.
        self.is_full = False

    @property
    def head(self) -> SnapshotHead:
        return SnapshotHead(self._sequence, self._position, self._chunks, self.chunks_bytes)

    def add(self, chunk: bytes) -> None:
        if not self.is_open:
            return
        size = encode_chunk_size(len(chunk))
        self._digest.update(size)
        self._digest.update(chunk)
        self._write(HEAD_BYTES + self.chunks_bytes, [size, chunk])
        self._chunks += 1
        self.chunks_bytes += len(size) + len(chunk)

    def _write(self, offset: int, parts: list[bytes]) -> None:
        if self.is_full:
            return
        try:
            self.file.write(offset, parts)
        except OSError as error:
            if not is_full(error):
                raise errors.JournalFailed(f"a snapshot could not be written: {error}") from error
            self.is_full = True

    def finish(self) -> None:
        if not self.is_open:
            return
        self._write(0, [encode_head(self._layout, self.head, self._digest.intdigest())])
        self.is_open = False
        self._owner.finish(self)

    def abort(self) -> None:
        if self.is_open:
            self.is_open = False
            self._owner.drop(self)


class Snapshots:
    def __init__(self, disk: Disk, worker: Worker, layout: Layout, warnings: list[str]) -> None:
        self._disk = disk
        self._worker = worker
        self._layout = layout
        self._warnings = warnings
        self._allocation = Allocation(disk, worker)
        self._writer: FileSnapshotWriter | None = None
        self._task: Task | None = None
        #: Sizes by path.
        self._reserves: dict[str, int] = {}
        #: The reserve was too small for the last snapshot that was begun.
        self._is_short = False
        self._reserve_number = 0
        self._reserve_bytes = RESERVE_BYTES_MIN
        #: Headers of the valid snapshots, at most two, the newest last.
        self.kept: list[SnapshotHead] = []

    @property
    def needed_from(self) -> int:
        """The position from which on replay from either of the two newest snapshots needs the journal. 0 while there
        are fewer than two: then, if one is damaged, replay has to start at the beginning of the journal."""
        return self.kept[0].position if len(self.kept) == SNAPSHOTS_KEPT else 0

    # Recovery.

    def find(self) -> list[bytes] | None:
        """Return the chunks of the newest valid snapshot. There is a warning of those that are not used: damaged ones
        are renamed, and those that can't be read are left as they are."""
        chunks: list[bytes] | None = None
        for name in reversed(self._disk.list(SNAPSHOTS)):
            path = f"{SNAPSHOTS}/{name}"
            if not name.isdigit():
                self._find_other(name, path)
            elif len(self.kept) == SNAPSHOTS_KEPT:
                self._disk.remove(path)
            else:
                found = self._find_one(path)
                chunks = found if chunks is None else chunks
        self._size_reserve()
        return chunks

    def _find_other(self, name: str, path: str) -> None:
        number = name.removeprefix(RESERVE_PREFIX)
        if number != name and number.isdigit():
            self._reserve_number = max(self._reserve_number, int(number))
            self._add_reserve(path)
        elif not name.endswith(".bad"):
            self._disk.remove(path)

    def _find_one(self, path: str) -> list[bytes] | None:
        try:
            head, chunks = load_snapshot(self._disk, self._layout, path, with_chunks=not self.kept)
        except SnapshotInvalid as reason:
            self._warnings.append(f"the snapshot {path} is damaged ({reason}); an older one is used instead")
            self._disk.rename(path, path + ".bad")
            return None
        except OSError as error:
            self._warnings.append(f"the snapshot {path} can't be read ({error}); an older one is used instead")
            return None
        self.kept.insert(0, head)
        return chunks

    def create(self) -> None:
        """Create the reserves of a new journal."""
        for _ in range(FILES):
            for _ in zero_fill(self._disk, self._reserve_path(), self._reserve_bytes):
                pass

    def _reserve_path(self) -> str:
        self._reserve_number += 1
        return f"{SNAPSHOTS}/{RESERVE_PREFIX}{self._reserve_number:06d}"

    # Writing.

    @property
    def can_begin(self) -> bool:
        if self._writer is not None or not self._reserves:
            return False
        # After one that did not fit, the next attempt waits until the next attempt to allocate a larger reserve.
        return self._large_reserves() > 0 or not (self._is_short and self._allocation.is_paused)

    def begin(self, sequence: int, position: int) -> FileSnapshotWriter:
        path = max(self._reserves, key=lambda path: (self._reserves[path], path))
        del self._reserves[path]
        self._disk.rename(path, WRITING)
        self._writer = FileSnapshotWriter(self, self._disk.open(WRITING), self._layout, sequence, position)
        return self._writer

    def finish(self, writer: FileSnapshotWriter) -> None:
        if writer.is_full:
            self.drop(writer)
        else:
            self._task = self._worker.start(self._put_in_place(writer), "finish a snapshot")

    def _put_in_place(self, writer: FileSnapshotWriter) -> Iterator[None]:
        writer.file.sync("snapshot")
        writer.file.close()
        yield
        self._disk.rename(WRITING, snapshot_path(writer.head.sequence))
        yield
        self._disk.sync_folder(SNAPSHOTS, "snapshot name")

    def drop(self, writer: FileSnapshotWriter) -> None:
        """Give up a snapshot. Its file becomes a reserve again."""
        self._writer = None
        writer.file.close()
        if writer.is_full:
            self._is_short = True
            self._reserve_bytes = max(self._reserve_bytes, 2 * writer.chunks_bytes)
        self._keep_as_reserve(WRITING)

    def _keep_as_reserve(self, path: str) -> None:
        reserve = self._reserve_path()
        self._disk.rename(path, reserve)
        self._add_reserve(reserve)

    def _add_reserve(self, path: str) -> None:
        file = self._disk.open(path)
        self._reserves[path] = file.size()
        file.close()

    def _delete_surplus(self) -> None:
        """Delete reserves that are too small, the smallest first, if there are more files than needed."""
        for path, size in sorted(self._reserves.items(), key=lambda item: (item[1], item[0])):
            if size < self._reserve_bytes and self._files() > FILES:
                del self._reserves[path]
                self._disk.remove(path)

    def _size_reserve(self) -> None:
        if self.kept:
            self._reserve_bytes = max(RESERVE_BYTES_MIN, 2 * self.kept[-1].chunks_bytes)

    # Between rounds.

    def maintain(self) -> SnapshotHead | None:
        """Return the snapshot that has become valid since the last call, if any. Raise JournalFailed."""
        finished = self._take_finished()
        self._allocation.tick()
        path = self._allocation.take()
        if path is not None:
            self._add_reserve(path)
        self._delete_surplus()
        large_files = self._files() - len(self._reserves) + self._large_reserves()
        if large_files < FILES and not self._allocation.is_running and not self._allocation.is_paused:
            self._allocation.start(self._reserve_path(), self._reserve_bytes)
        return finished

    def _files(self) -> int:
        return len(self.kept) + len(self._reserves) + (self._writer is not None)

    def _large_reserves(self) -> int:
        return sum(size >= self._reserve_bytes for size in self._reserves.values())

    def _take_finished(self) -> SnapshotHead | None:
        task, writer = self._task, self._writer
        if task is None or writer is None or not task.done:
            return None
        if task.error is not None:
            raise errors.JournalFailed(f"a snapshot could not be synced: {task.error}") from task.error
        self._task = self._writer = None
        self._is_short = False
        self.kept.append(writer.head)
        self._size_reserve()
        if len(self.kept) > SNAPSHOTS_KEPT:
            self._keep_as_reserve(snapshot_path(self.kept.pop(0).sequence))
            self._delete_bad()
        return writer.head

    def _delete_bad(self) -> None:
        """Delete the invalid snapshots, since there are two valid ones again."""
        for name in self._disk.list(SNAPSHOTS):
            if name.endswith(".bad"):
                self._disk.remove(f"{SNAPSHOTS}/{name}")
