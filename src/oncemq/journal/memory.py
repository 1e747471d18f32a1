"""The journal in memory: the same contract, but nothing is durable. For tests, and for brokers that need no disk.

`reopen` simulates a crash: it returns a journal that holds only what was synced. `take_over` does what a standby does:
both journals share one store, and the former one is fenced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from oncemq.journal.contract import (
    GROUP_HEADER_BYTES,
    SNAPSHOTS_KEPT,
    Extent,
    Group,
    LoadedJournal,
    Record,
    RecordHead,
    RecordRef,
    ReplayedGroup,
    SnapshotWriter,
    WriteSlot,
    group_bytes,
    is_empty,
)
from oncemq.journal.rows import TablesWanted
from oncemq.journal.verification import record_corrupt, record_damage
from oncemq.protocol import errors

EXTENT_BYTES = 64 * 1024 * 1024
#: Reserved for acks and moves if `extents_max` limits the journal.
RESERVE_EXTENTS = 2


class _StoredGroup(msgspec.Struct, frozen=True):
    sequence: int
    position: int
    size: int
    group: Group


class _Snapshot(msgspec.Struct, frozen=True):
    sequence: int
    position: int
    chunks: list[bytes]


class _Store(msgspec.Struct):
    """What a journal shares with those that take it over."""

    #: Groups by extent. The last extent is the active one.
    extents: dict[int, list[_StoredGroup]]
    records: dict[int, Record]
    snapshots: list[_Snapshot]
    #: Of the only writer.
    term: int = 0


class _MemorySnapshotWriter:
    def __init__(self, journal: MemoryJournal, sequence: int, position: int) -> None:
        self._journal = journal
        self._snapshot = _Snapshot(sequence, position, [])

    def add(self, chunk: bytes) -> None:
        self._snapshot.chunks.append(bytes(chunk))

    def finish(self) -> None:
        self._journal.take_snapshot(self._snapshot)

    def abort(self) -> None:
        self._journal.take_snapshot(None)


class MemoryJournal:
    def __init__(
        self, *, extent_bytes: int = EXTENT_BYTES, journal_id: bytes = bytes(16), extents_max: int = 0
    ) -> None:
        """`extents_max` 0 means that only the machine's memory limits the journal."""
        self.journal_id = journal_id
        self.extent_bytes = extent_bytes
        self.group_capacity_bytes = extent_bytes - GROUP_HEADER_BYTES
        self.replay_bytes = 0
        self.term = 0
        self.tables_wanted: TablesWanted = ""
        self.warnings: list[str] = []
        self._extents_max = extents_max
        self._store = _Store({1: []}, {}, [])
        self._finished: _Snapshot | None = None
        self._is_writing_snapshot = False
        self._snapshot_bytes = 0
        self._sequence = 1
        self._position = extent_bytes
        self._unsynced: _StoredGroup | None = None
        self._is_last_empty = True
        self._time_ms = 0
        self._closed = False

    def describe(self) -> str:
        return "memory:"

    def reopen(self) -> MemoryJournal:
        """Return what a new process would find: everything that was synced."""
        journal = self._new_at_synced_end()
        lost = self._unsynced
        journal._store.extents = {
            number: [stored for stored in groups if stored is not lost] for number, groups in self._extents.items()
        }
        for groups in journal._extents.values():
            for stored in groups:
                journal._keep_records(stored.group)
        journal._store.snapshots = list(self._snapshots)
        journal.term = journal._store.term = self._store.term
        return journal

    def take_over(self) -> MemoryJournal:
        """Return the journal of another broker, on the same store. This one can't write any more."""
        journal = self._new_at_synced_end()
        lost, self._unsynced = self._unsynced, None
        if lost is not None:
            self._extents[self._active].remove(lost)
            for record in lost.group.records:
                del self._records[record.position]
        journal._store = self._store
        self._store.term += 1
        journal.term = self._store.term
        return journal

    def _new_at_synced_end(self) -> MemoryJournal:
        """Return an empty journal that continues after the last synced group."""
        journal = MemoryJournal(
            extent_bytes=self.extent_bytes, journal_id=self.journal_id, extents_max=self._extents_max
        )
        lost = self._unsynced
        journal._sequence = self._sequence if lost is None else lost.sequence
        journal._position = self._position if lost is None else lost.position
        return journal

    @property
    def _extents(self) -> dict[int, list[_StoredGroup]]:
        return self._store.extents

    @property
    def _records(self) -> dict[int, Record]:
        return self._store.records

    @property
    def _snapshots(self) -> list[_Snapshot]:
        return self._store.snapshots

    def load(self) -> LoadedJournal:
        newest = self._snapshots[-1] if self._snapshots else _Snapshot(0, 0, [])
        groups = [
            stored
            for number in sorted(self._extents)
            for stored in self._extents[number]
            if stored.sequence > newest.sequence
        ]
        self.replay_bytes = sum(stored.size for stored in groups)
        if groups:
            self._time_ms = groups[-1].group.time_ms
            self._is_last_empty = is_empty(groups[-1].group)
        return LoadedJournal(list(newest.chunks) if self._snapshots else None, _replay(groups))

    def _check(self) -> None:
        if self._closed:
            raise errors.JournalFailed("the journal is closed")
        self._check_term()

    def _check_term(self) -> None:
        if self.term != self._store.term:
            raise errors.JournalFenced(f"another broker took over: its term is {self._store.term}, ours {self.term}")

    # Writing.

    @property
    def _active(self) -> int:
        return max(self._extents)

    def _free_bytes(self) -> int:
        return (self._active + 1) * self.extent_bytes - self._position - GROUP_HEADER_BYTES

    def _free_extents(self) -> int:
        return self._extents_max - len(self._extents) if self._extents_max else 1 << 32

    def next_slot(self, need_bytes: int) -> WriteSlot:
        self._check()
        need_bytes = min(need_bytes, self.group_capacity_bytes)
        if need_bytes > self._free_bytes() and self._free_extents() > 0:
            number = self._active + 1
            self._extents[number] = []
            self._position = number * self.extent_bytes
        free = max(0, self._free_bytes())
        extents = self._free_extents()
        writable = free if extents >= RESERVE_EXTENTS else 0
        return WriteSlot(self._position + GROUP_HEADER_BYTES, free, writable, free if extents > 0 else 0)

    def append(self, group: Group) -> None:
        self._check()
        assert self._unsynced is None, "the next group must not be written before the last one is synced"
        used = group_bytes(group)
        size = used + -used % 8
        assert used <= self._free_bytes() + GROUP_HEADER_BYTES, "a group is larger than its slot"
        kept = Group(group.time_ms, bytes(group.events), [_copied(record) for record in group.records])
        stored = _StoredGroup(self._sequence, self._position, size, kept)
        self._extents[self._active].append(stored)
        self._keep_records(kept)
        self._unsynced = stored
        self._sequence += 1
        self._position += size
        self.replay_bytes += size
        self._time_ms = group.time_ms
        self._is_last_empty = is_empty(group)

    def _keep_records(self, group: Group) -> None:
        for record in group.records:
            self._records[record.position] = record

    def sync(self) -> None:
        self._check()
        self._unsynced = None

    def confirm(self) -> None:
        self._check()
        if not self._is_last_empty:
            self._append_empty()

    def _append_empty(self) -> None:
        self.next_slot(0)
        if self._free_bytes() >= 0:
            self.append(Group(self._time_ms, b"", ()))
            self.sync()

    # Reading.

    def read(self, wanted: Sequence[RecordRef]) -> list[tuple[bytes, int]]:
        return [self._read_one(one) for one in wanted]

    def _read_one(self, wanted: RecordRef) -> tuple[bytes, int]:
        record = self._records.get(wanted.position)
        payload, damage = b"", "there is no record"
        if record is not None:
            payload = bytes(record.payload)
            damage = record_damage(wanted, record.topic_id, record.first_offset, record.checksum, payload)
        if record is None or damage:
            raise record_corrupt(f"memory: at position {wanted.position}", wanted, damage)
        return payload, record.checksum

    def scan(self, extent: int, position: int, bytes_max: int) -> tuple[list[RecordHead], int]:
        heads: list[RecordHead] = []
        seen_bytes = 0
        for stored in self._extents.get(extent, []):
            if stored.position < position:
                continue
            if seen_bytes >= bytes_max:
                return heads, stored.position
            heads += [_head(record) for record in stored.group.records]
            seen_bytes += stored.size
        return heads, 0

    def ensure_not_fenced(self) -> None:
        self._check()

    def raise_term(self, term: int) -> None:
        self._check()
        self.term = self._store.term = max(self.term, term)

    # Snapshots and space.

    def begin_snapshot(self) -> SnapshotWriter | None:
        self._check()
        assert self._unsynced is None, "a snapshot holds only synced state"
        if self._is_writing_snapshot:
            return None
        if self._snapshots and self._snapshots[-1].sequence == self._sequence - 1:
            self._append_empty()
        self._is_writing_snapshot = True
        self._snapshot_bytes = self.replay_bytes
        return _MemorySnapshotWriter(self, self._sequence - 1, self._position)

    def take_snapshot(self, snapshot: _Snapshot | None) -> None:
        """Take the finished snapshot of the writer, or None if it was aborted."""
        self._finished = snapshot
        self._is_writing_snapshot = snapshot is not None

    def extents(self) -> list[Extent]:
        return [
            Extent(number, sum(stored.size for stored in groups), self._is_covered(number))
            for number, groups in sorted(self._extents.items())
        ]

    def _is_covered(self, number: int) -> bool:
        if len(self._snapshots) < SNAPSHOTS_KEPT or number == self._active:
            return False
        return (number + 1) * self.extent_bytes <= self._snapshots[-SNAPSHOTS_KEPT].position

    def release(self, live: Mapping[int, int]) -> None:
        self._check()
        for number in [number for number in self._extents if number not in live and self._is_covered(number)]:
            for stored in self._extents.pop(number):
                for record in stored.group.records:
                    del self._records[record.position]

    def maintain(self) -> None:
        self._check()
        if self._finished is not None:
            self._snapshots[:] = [*self._snapshots, self._finished][-SNAPSHOTS_KEPT:]
            self.replay_bytes -= self._snapshot_bytes
            self.take_snapshot(None)

    def writable_bytes(self) -> int:
        ordinary = self._free_extents() - RESERVE_EXTENTS
        return 0 if ordinary < 0 else max(0, self._free_bytes()) + ordinary * self.group_capacity_bytes

    def close(self) -> None:
        if not self._closed and self._unsynced is None and self.term == self._store.term:
            self.confirm()
        self._closed = True


def _copied(record: Record) -> Record:
    """Return the record with a payload that the caller can't change any more."""
    return msgspec.structs.replace(record, payload=bytes(record.payload))


def _head(record: Record) -> RecordHead:
    return RecordHead(
        record.position, record.topic_id, record.first_offset, record.count, record.checksum, len(record.payload)
    )


def _replay(groups: Sequence[_StoredGroup]) -> Iterator[ReplayedGroup]:
    for stored in groups:
        yield ReplayedGroup(stored.sequence, stored.group.time_ms, stored.group.events)
