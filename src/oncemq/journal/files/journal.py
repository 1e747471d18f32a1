"""The journal in files: segments, snapshots and recovery, under the contract of journal/contract.py.

A group costs one write and one sync. Everything else that takes time (zero-filling, syncing snapshots, deleting files)
is done in the background by the worker, and `maintain` takes over its results.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from oncemq.disk.contract import Disk
from oncemq.disk.os_disk import OsDisk
from oncemq.journal.contract import (
    GROUP_HEADER_BYTES,
    Extent,
    Group,
    LoadedJournal,
    RecordHead,
    RecordRef,
    ReplayedGroup,
    SnapshotWriter,
    WriteSlot,
    is_empty,
)
from oncemq.journal.files import meta
from oncemq.journal.files.group import encode
from oncemq.journal.files.layout import COPYING, LOCK, META, Layout, make_layout
from oncemq.journal.files.record_reader import read_records, scan_segment
from oncemq.journal.files.recovery import Recovery
from oncemq.journal.files.segments import RESERVE_SPARES, Segments
from oncemq.journal.files.snapshots import Snapshots
from oncemq.journal.rows import TablesWanted
from oncemq.journal.verification import unfinished_copy
from oncemq.journal.worker import ThreadWorker, Worker
from oncemq.protocol import errors

SEGMENT_BYTES = 64 * 1024 * 1024
BLOCK_BYTES = 4096


def open_files(path: str | Path, *, segment_bytes: int = SEGMENT_BYTES) -> FileJournal:
    """Open the journal in a folder of this machine. It is created if there is none."""
    return FileJournal(OsDisk(path), ThreadWorker(), segment_bytes=segment_bytes, journal_id=os.urandom(16))


class FileJournal:
    """`segment_bytes`, `block_bytes` and `journal_id` apply to a new journal; an existing one keeps its own.

    `is_copy`: a new journal is the target of a copy, and is refused by everybody else before `finish_copy`. What an
    interrupted copy has left is deleted."""

    def __init__(
        self,
        disk: Disk,
        worker: Worker,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        block_bytes: int = BLOCK_BYTES,
        journal_id: bytes | None = None,
        is_copy: bool = False,
    ) -> None:
        self._disk = disk
        self._worker = worker
        self._meta = META
        self._lock = disk.lock(LOCK)
        try:
            if not disk.exists(META):
                self._create(make_layout(journal_id or os.urandom(16), segment_bytes, block_bytes), is_copy)
            self._layout = meta.read_layout(disk, self._meta)
            self.term = meta.read_term(disk, self._meta)
        except OSError as error:
            self._lock.close()
            raise errors.JournalFailed(f"{disk.describe()}: {error}") from error
        except errors.JournalError:
            self._lock.close()
            raise
        self.journal_id = self._layout.journal_id
        self.extent_bytes = self._layout.segment_bytes
        self.group_capacity_bytes = self._layout.capacity_bytes
        self.replay_bytes = 0
        self.tables_wanted: TablesWanted = ""
        #: Damage that recovery found and repaired, for the log.
        self.warnings: list[str] = []
        self._segments = Segments(disk, worker, self._layout)
        self._snapshots = Snapshots(disk, worker, self._layout, self.warnings)
        self._failed = "the journal was not loaded"
        self._is_synced = True
        self._is_last_empty = True
        self._time_ms = 0
        #: Of the next group.
        self._sequence = 1
        self._position = 0
        #: Bytes from the newest snapshot to the one that is being written.
        self._snapshot_bytes = 0

    def describe(self) -> str:
        return self._disk.describe()

    def _create(self, layout: Layout, is_copy: bool) -> None:
        if is_copy:
            self._meta = COPYING
            meta.create_copy(self._disk, layout)
        elif self._disk.exists(COPYING):
            raise unfinished_copy(self._disk.describe())
        else:
            meta.create(self._disk, layout)

    def finish_copy(self) -> None:
        """The copy is complete: from here on it is a journal."""
        self._check()
        if self._meta == COPYING:
            with self._writing("finishing a copy"):
                meta.finish_copy(self._disk)
            self._meta = META

    # Recovery.

    def load(self) -> LoadedJournal:
        """Begin recovery. All groups must be consumed before anything else is called."""
        recovery = Recovery(self._disk, self._layout, self._segments, self.warnings)
        with self._recovering():
            self._segments.find()
            chunks = self._snapshots.find()
            newest = self._snapshots.kept[-1] if self._snapshots.kept else None
            if newest is None:
                recovery.start(1, 0)
            else:
                recovery.start(newest.sequence + 1, newest.position)
        return LoadedJournal(chunks, self._replay(recovery))

    @contextmanager
    def _recovering(self) -> Iterator[None]:
        """Close the journal if it can't be recovered, so that its lock is released."""
        try:
            yield
        except OSError as error:
            failure = self._fail("recovery", error)
            self.close()
            raise failure from error
        except errors.JournalError:
            self.close()
            raise

    def _replay(self, recovery: Recovery) -> Iterator[ReplayedGroup]:
        with self._recovering():
            yield from recovery.groups()
            meta.raise_version(self._disk, self._meta, self._layout)
        self._sequence = recovery.sequence
        self._time_ms = recovery.time_ms
        self.replay_bytes = recovery.replayed_bytes
        self._is_last_empty = recovery.last.group.is_empty if recovery.last else recovery.sequence == 1
        self._continue_at(recovery.position)
        self._failed = ""

    def _continue_at(self, position: int) -> None:
        self._position = position
        self._base = self._segments.active * self._layout.segment_bytes
        self._limit = self._base + self._layout.segment_bytes
        #: From this position on, a missing spare is created without pauses.
        self._hurry_from = self._base + self._layout.segment_bytes // 2
        self._file = self._segments.file(self._segments.active)

    def _fail(self, what: str, error: OSError) -> errors.JournalFailed:
        """Make the failure final: what the disk holds now is not known, so nothing may continue as if it were."""
        self._failed = f"{self._disk.describe()}: {what} failed: {error}. {errors.JournalFailed.advice}"
        return errors.JournalFailed(self._failed)

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._fail(what, error) from error

    def _check(self) -> None:
        if self._failed:
            raise errors.JournalFailed(self._failed)

    # Writing.

    def next_slot(self, need_bytes: int) -> WriteSlot:
        self._check()
        free = self._limit - self._position - GROUP_HEADER_BYTES
        if self._position >= self._hurry_from:
            self._hurry_from = self._limit
            self._segments.hurry()
        if need_bytes > free:
            self._begin_segment(min(need_bytes, self._layout.capacity_bytes))
            free = max(0, self._limit - self._position - GROUP_HEADER_BYTES)
        spares = len(self._segments.spares)
        writable = free if spares >= RESERVE_SPARES else 0
        return WriteSlot(self._position + GROUP_HEADER_BYTES, free, writable, free if spares else 0)

    def _begin_segment(self, need_bytes: int) -> None:
        """Begin a segment, unless there is no spare, or the active segment has enough space."""
        if need_bytes <= self._limit - self._position - GROUP_HEADER_BYTES:
            return
        assert self._is_synced, "a segment must not begin before the last group is synced"
        with self._writing("beginning a segment"):
            self._segments.wait_for_spare()
            if not self._segments.spares:
                return
            self._segments.begin(self._segments.active + 1, self._sequence)
        self._continue_at(self._layout.first_position(self._segments.active))

    def append(self, group: Group) -> None:
        self._check()
        assert self._is_synced, "the next group must not be written before the last one is synced"
        parts, size = encode(self._layout, self._sequence, self._position, group)
        assert self._position + size <= self._limit, "a group is larger than its slot"
        try:
            self._file.write(self._position - self._base, parts)
        except OSError as error:
            raise self._fail("a write", error) from error
        self._is_synced = False
        self._is_last_empty = is_empty(group)
        self._time_ms = group.time_ms
        self._sequence += 1
        self._position += size
        self.replay_bytes += size

    def sync(self) -> None:
        self._check()
        try:
            self._file.sync("group")
        except OSError as error:
            raise self._fail("a sync", error) from error
        self._is_synced = True

    def confirm(self) -> None:
        self._check()
        if not self._is_last_empty:
            self._append_empty()

    def _append_empty(self) -> None:
        self.next_slot(0)
        if self._position < self._limit:
            self.append(Group(self._time_ms, b"", ()))
            self.sync()

    # Reading.

    def read(self, wanted: Sequence[RecordRef]) -> list[tuple[bytes | memoryview, int]]:
        return read_records(self._segments, self._layout, wanted)

    def scan(self, extent: int, position: int, bytes_max: int) -> tuple[list[RecordHead], int]:
        base = extent * self.extent_bytes
        at = position - base if position else self._layout.block_bytes
        end = self._position - base if extent == self._segments.active else self.extent_bytes
        try:
            heads, next_at = scan_segment(self._segments.file(extent), self._layout, extent, at, end, bytes_max)
        except OSError as error:
            raise errors.RecordCorrupt(f"segment {extent} can't be read: {error}.") from error
        return heads, base + next_at if next_at else 0

    def ensure_not_fenced(self) -> None:
        """Do nothing: the lock guarantees that there is one writer."""

    def raise_term(self, term: int) -> None:
        if term > self.term:
            with self._writing("raising the term"):
                meta.write_term(self._disk, self._meta, self._layout, term)
            self.term = term

    # Snapshots and space.

    def begin_snapshot(self) -> SnapshotWriter | None:
        self._check()
        assert self._is_synced, "a snapshot holds only synced state"
        if not self._snapshots.can_begin:
            return None
        kept = self._snapshots.kept
        if kept and kept[-1].sequence == self._sequence - 1:
            # An empty group separates two snapshots of the same state, so that the second one frees segments.
            self._append_empty()
        self._snapshot_bytes = self.replay_bytes
        with self._writing("beginning a snapshot"):
            return self._snapshots.begin(self._sequence - 1, self._position)

    def extents(self) -> list[Extent]:
        active = self._segments.active
        return [
            Extent(
                number, self._position - self._base if number == active else self.extent_bytes, self._is_covered(number)
            )
            for number in self._segments.numbers
        ]

    def _is_covered(self, number: int) -> bool:
        is_needed = (number + 1) * self.extent_bytes > self._snapshots.needed_from
        return not is_needed and number != self._segments.active

    def release(self, live: Mapping[int, int]) -> None:
        self._check()
        numbers = self._segments.numbers
        with self._writing("recycling a segment"):
            self._segments.recycle([number for number in numbers if number not in live and self._is_covered(number)])

    def maintain(self) -> None:
        self._check()
        try:
            with self._writing("maintenance"):
                self._segments.maintain()
                finished = self._snapshots.maintain()
        except errors.JournalFailed as error:
            self._failed = str(error)
            raise
        if finished is not None:
            self.replay_bytes -= self._snapshot_bytes

    def writable_bytes(self) -> int:
        ordinary = len(self._segments.spares) - RESERVE_SPARES + self._disk.free_bytes() // self.extent_bytes
        if ordinary < 0:
            return 0
        free = max(0, self._limit - self._position - GROUP_HEADER_BYTES)
        return free + ordinary * self._layout.capacity_bytes

    def close(self) -> None:
        """Confirm the last group and release the lock. It may be called more than once."""
        try:
            if not self._failed and self._is_synced:
                self.confirm()
        finally:
            self._failed = self._failed or "the journal is closed"
            self._worker.close()
            self._segments.close()
            self._lock.close()
