"""The journal in memory: the same contract, nothing durable. For tests, and for brokers that need no disk.

`reopen` is its crash: a journal that holds what was synced, and nothing else. `take_over` is what a standby does: both
journals have one store, and the former one is fenced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import xxhash

from oncemq.journal.contract import (
    Extent,
    Group,
    LoadedJournal,
    Record,
    RecordHead,
    RecordRef,
    ReplayedGroup,
    SnapshotWriter,
    WriteSlot,
    record_bytes,
)
from oncemq.journal.rows import TablesWanted
from oncemq.protocol import errors

EXTENT_BYTES = 64 * 1024 * 1024
#: Kept for acks and moves where `extents_max` bounds the journal.
RESERVE_EXTENTS = 2
KEPT_SNAPSHOTS = 2
_GROUP_HEADER_BYTES = 64


class _Stored(msgspec.Struct, frozen=True):
    sequence: int
    position: int
    size: int
    group: Group


class _Snapshot(msgspec.Struct, frozen=True):
    sequence: int
    position: int
    chunks: list[bytes]


class _Store(msgspec.Struct):
    """What a journal and those that take it over have in common."""

    #: extent → its groups; the last one is the active one.
    extents: dict[int, list[_Stored]]
    records: dict[int, Record]
    snapshots: list[_Snapshot]
    #: Of the one writer.
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
        """`extents_max` 0: no bound but the machine's memory."""
        self.journal_id = journal_id
        self.extent_bytes = extent_bytes
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
        self._unsynced: _Stored | None = None
        self._is_last_empty = True
        self._time_ms = 0
        self._closed = False

    def describe(self) -> str:
        return "memory:"

    def reopen(self) -> MemoryJournal:
        """What a new process would find: everything synced."""
        twin = self._twin()
        lost = self._unsynced
        twin._store.extents = {
            number: [stored for stored in groups if stored is not lost] for number, groups in self._extents.items()
        }
        for groups in twin._extents.values():
            for stored in groups:
                twin._keep_records(stored.group)
        twin._store.snapshots = list(self._snapshots)
        twin.term = twin._store.term = self._store.term
        return twin

    def take_over(self) -> MemoryJournal:
        """The journal of another broker, on the same store. This one has written for the last time."""
        twin = self._twin()
        lost, self._unsynced = self._unsynced, None
        if lost is not None:
            self._extents[self._active].remove(lost)
            for record in lost.group.records:
                del self._records[record.position]
        twin._store = self._store
        self._store.term += 1
        twin.term = self._store.term
        return twin

    def _twin(self) -> MemoryJournal:
        """Empty, and at the end of what is synced."""
        twin = MemoryJournal(extent_bytes=self.extent_bytes, journal_id=self.journal_id, extents_max=self._extents_max)
        lost = self._unsynced
        twin._sequence = self._sequence if lost is None else lost.sequence
        twin._position = self._position if lost is None else lost.position
        return twin

    @property
    def _extents(self) -> dict[int, list[_Stored]]:
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
            self._is_last_empty = _is_empty(groups[-1].group)
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

    def _room(self) -> int:
        return (self._active + 1) * self.extent_bytes - self._position - _GROUP_HEADER_BYTES

    def _free_extents(self) -> int:
        return self._extents_max - len(self._extents) if self._extents_max else 1 << 32

    def next_slot(self, need_bytes: int) -> WriteSlot:
        self._check()
        need_bytes = min(need_bytes, self.extent_bytes - _GROUP_HEADER_BYTES)
        if need_bytes > self._room() and self._free_extents() > 0:
            number = self._active + 1
            self._extents[number] = []
            self._position = number * self.extent_bytes
        room = max(0, self._room())
        free = self._free_extents()
        writable = room if free >= RESERVE_EXTENTS else 0
        return WriteSlot(self._position + _GROUP_HEADER_BYTES, room, writable, room if free > 0 else 0)

    def append(self, group: Group) -> None:
        self._check()
        assert self._unsynced is None, "the next group is not written before the last one is synced"
        records_bytes = sum(record_bytes(len(record.payload)) for record in group.records)
        used = _GROUP_HEADER_BYTES + records_bytes + len(group.events)
        size = used + -used % 8
        assert used <= self._room() + _GROUP_HEADER_BYTES, "a group is larger than its place"
        kept = Group(group.time_ms, bytes(group.events), [_own(record) for record in group.records])
        stored = _Stored(self._sequence, self._position, size, kept)
        self._extents[self._active].append(stored)
        self._keep_records(kept)
        self._unsynced = stored
        self._sequence += 1
        self._position += size
        self.replay_bytes += size
        self._time_ms = group.time_ms
        self._is_last_empty = _is_empty(group)

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
        if self._room() >= 0:
            self.append(Group(self._time_ms, b"", ()))
            self.sync()

    # Reading.

    def read(self, wanted: Sequence[RecordRef]) -> list[tuple[bytes, int]]:
        return [self._read_one(one) for one in wanted]

    def _read_one(self, wanted: RecordRef) -> tuple[bytes, int]:
        record = self._records.get(wanted.position)
        if record is None or record.topic_id != wanted.topic_id or len(record.payload) != wanted.size:
            raise errors.RecordCorrupt(f"there is no such record at {wanted.position}")
        if record.first_offset != wanted.first_offset and -1 not in (record.first_offset, wanted.first_offset):
            raise errors.RecordCorrupt(f"the record at {wanted.position} has offset {record.first_offset}")
        payload = bytes(record.payload)
        if xxhash.xxh3_64_intdigest(payload) != record.checksum:
            raise errors.RecordCorrupt(f"the record at {wanted.position} does not match its checksum")
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
        assert self._unsynced is None, "a snapshot holds synced state only"
        if self._is_writing_snapshot:
            return None
        if self._snapshots and self._snapshots[-1].sequence == self._sequence - 1:
            self._append_empty()
        self._is_writing_snapshot = True
        self._snapshot_bytes = self.replay_bytes
        return _MemorySnapshotWriter(self, self._sequence - 1, self._position)

    def take_snapshot(self, snapshot: _Snapshot | None) -> None:
        """From the writer: finished, or given up."""
        self._finished = snapshot
        self._is_writing_snapshot = snapshot is not None

    def extents(self) -> list[Extent]:
        return [
            Extent(number, sum(stored.size for stored in groups), self._is_behind(number))
            for number, groups in sorted(self._extents.items())
        ]

    def _is_behind(self, number: int) -> bool:
        if len(self._snapshots) < KEPT_SNAPSHOTS or number == self._active:
            return False
        return (number + 1) * self.extent_bytes <= self._snapshots[-KEPT_SNAPSHOTS].position

    def release(self, live: Mapping[int, int]) -> None:
        self._check()
        missing = live.keys() - self._extents.keys() - {0}
        if missing:
            raise errors.JournalCorrupt(f"extent {min(missing)} is missing, and messages in it are needed")
        for number in [number for number in self._extents if number not in live and self._is_behind(number)]:
            for stored in self._extents.pop(number):
                for record in stored.group.records:
                    del self._records[record.position]

    def maintain(self) -> None:
        self._check()
        if self._finished is not None:
            self._snapshots[:] = [*self._snapshots, self._finished][-KEPT_SNAPSHOTS:]
            self.replay_bytes -= self._snapshot_bytes
            self.take_snapshot(None)

    def writable_bytes(self) -> int:
        ordinary = self._free_extents() - RESERVE_EXTENTS
        return 0 if ordinary < 0 else max(0, self._room()) + ordinary * (self.extent_bytes - _GROUP_HEADER_BYTES)

    def close(self) -> None:
        if not self._closed and self._unsynced is None and self.term == self._store.term:
            self.confirm()
        self._closed = True


def _is_empty(group: Group) -> bool:
    return not group.events and not group.records


def _own(record: Record) -> Record:
    """With a payload that the caller can't change any more."""
    return msgspec.structs.replace(record, payload=bytes(record.payload))


def _head(record: Record) -> RecordHead:
    return RecordHead(
        record.position, record.topic_id, record.first_offset, record.count, record.checksum, len(record.payload)
    )


def _replay(groups: Sequence[_Stored]) -> Iterator[ReplayedGroup]:
    for stored in groups:
        yield ReplayedGroup(stored.sequence, stored.group.time_ms, stored.group.events)
