"""What every journal does. One contract suite (tests/journal/) runs on each of them.

A *group* is what one sync covers: events (opaque bytes) and records (payloads with what identifies them).
A *position* is a place in the journal, a number that only grows: where a record lies, for ever. Positions
are handed out before anything is written, by `place`, so that events can carry them. A group's first record
lies at `WriteSlot.position`, the next at `record_end(position, size)`, and so on.

The journal is cut into *extents* of `extent_bytes` positions each; a position's extent is
`position // extent_bytes`. Extents are what is released.

The order of calls: `load`, then rounds of `place`, `append`, `sync`, `read`, then `hold`, with `maintain` between
rounds. A failed append or sync is final: the journal raises JournalFailed from then on.

A journal has one writer. Where a lock can see to that (files), `hold` has nothing to do. Where another broker may
take over while this one is not looking (PostgreSQL), each take-over begins a new *term*; an append of an older term
fails, and `hold` says whether what was read may still be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from oncemq.journal.rows import Rows, TablesWanted

#: In front of every payload; see group.py for the layout.
RECORD_HEADER_BYTES = 48


def record_bytes(size: int) -> int:
    """What a payload of `size` bytes takes in the journal."""
    return RECORD_HEADER_BYTES + size + -size % 8


def record_end(position: int, size: int) -> int:
    """Where the record after this one lies, in the same group."""
    return position + record_bytes(size)


class WriteSlot(msgspec.Struct, frozen=True, gc=False):
    """Where the next group will lie, and how much it may hold."""

    #: Of the group's first record.
    position: int
    #: Records and events together.
    room_bytes: int
    #: What of that may be new messages: 0 when the disk is full. The rest is kept for acks and moves.
    writable_bytes: int
    #: What of it may be messages of a transaction whose acks let go of as much. The last extent is kept from them, too:
    #: acks alone, and moves, must always find room.
    reserve_bytes: int = 0


class Record(msgspec.Struct, frozen=True, gc=False):
    """A payload and what identifies it; all of it is verified when it is read."""

    position: int
    topic_id: int
    #: -1 where the offset is not known yet (a stage).
    first_offset: int
    count: int
    checksum: int
    payload: bytes | memoryview


class RecordHead(msgspec.Struct, frozen=True, gc=False):
    """A record without its payload, as `scan` finds it."""

    position: int
    topic_id: int
    first_offset: int
    count: int
    checksum: int
    size: int


class RecordRef(msgspec.Struct, frozen=True, gc=False):
    """A record to read: `read` refuses to return anything else than exactly this one."""

    position: int
    topic_id: int
    #: What the record says, or -1 if that is not known (the record may say -1 as well).
    first_offset: int
    size: int


class Group(msgspec.Struct, frozen=True, gc=False):
    time_ms: int
    events: bytes
    records: Sequence[Record]
    #: What it changes in tables for people, where the journal wants them.
    rows: Rows | None = None


class ReplayedGroup(msgspec.Struct, frozen=True, gc=False):
    """A group as recovery finds it, verified. Files verify its records as well; PostgreSQL does when they are read."""

    sequence: int
    time_ms: int
    events: bytes


class LoadedJournal(msgspec.Struct, frozen=True):
    """What recovery starts from: the newest snapshot's chunks, and the groups behind it, in order."""

    snapshot: Sequence[bytes] | None
    groups: Iterator[ReplayedGroup]


class Extent(msgspec.Struct, frozen=True, gc=False):
    number: int
    #: Bytes that it holds, live or not.
    used_bytes: int
    #: Lies behind what both newest snapshots need: goes as soon as nothing in it is live.
    is_covered_by_snapshots: bool


class SnapshotWriter(Protocol):
    """Takes a state's chunks. The state must be that of the last synced group when it was begun."""

    def add(self, chunk: bytes) -> None: ...

    def finish(self) -> None:
        """Make it durable beside the loop; a later `maintain` puts it in place."""

    def abort(self) -> None: ...


class Journal(Protocol):
    #: Random, made with the journal.
    journal_id: bytes
    extent_bytes: int
    #: Written since the newest snapshot: what a restart would have to replay.
    replay_bytes: int
    #: Rises with each take-over. 0 where nobody can take over, unless it is a copy: then it was its source's.
    term: int
    #: Whether groups have to bring rows for the tables that people query.
    tables_wanted: TablesWanted

    def describe(self) -> str:
        """For people: where it stores."""

    def load(self) -> LoadedJournal: ...

    def next_slot(self, need_bytes: int) -> WriteSlot:
        """Where a group that needs so many bytes goes; begins a new extent where the current one is too full.

        If that can't be had, `room_bytes` is smaller than what was asked for."""

    def append(self, group: Group) -> None:
        """Write a group at the place given last. Not durable before `sync`."""

    def sync(self) -> None: ...

    def confirm(self) -> None:
        """Append and sync an empty group, unless the last one is empty: guards the last group from looking
        torn if the disk damages it later."""

    def read(self, wanted: Sequence[RecordRef]) -> list[tuple[bytes, int]]:
        """Payloads and their checksums, verified. Raises RecordCorrupt."""

    def ensure_not_fenced(self) -> None:
        """Nothing is answered without it: raises JournalFenced unless this is still the journal's one writer."""

    def raise_term(self, term: int) -> None:
        """At least so high from here on: clients don't listen to a broker of a lower term than they have met."""

    def begin_snapshot(self) -> SnapshotWriter | None:
        """None while there is another one, or no room for it."""

    def extents(self) -> list[Extent]: ...

    def scan(self, extent: int, position: int, bytes_max: int) -> tuple[list[RecordHead], int]:
        """The records of an extent from a position on (0 = its start), and where to go on (0 = that was all)."""

    def release(self, live: Mapping[int, int]) -> None:
        """Recycle every extent that is behind the snapshots and has no entry in `live`."""

    def maintain(self) -> None:
        """Take in what was done beside the loop: spare segments, finished snapshots."""

    def writable_bytes(self) -> int: ...

    def close(self) -> None: ...
