"""The contract of a journal. One test suite (tests/journal/) runs on all implementations.

A *group* is what one sync covers: events (opaque bytes) and records (payloads and their identification).
A *position* is a location in the journal. Positions only grow, and a record keeps its position forever. `next_slot`
returns positions before anything is written, so that events can contain them. The first record of a group has the
position `WriteSlot.position`, the next one `record_end(position, size)`, and so on.

The journal is divided into *extents* of `extent_bytes` positions each. The extent of a position is
`position // extent_bytes`. Space is released in whole extents.

The order of calls is: `load`; then rounds of `next_slot`, `append`, `sync`, `read` and `ensure_not_fenced`, with
`maintain` between rounds. A failed append or sync is final: the journal raises JournalFailed from then on.

A journal has one writer. For files a lock guarantees that, and `ensure_not_fenced` does nothing. In PostgreSQL another
broker may take over while this one is suspended. Each take-over begins a new *term*. An append of an older term fails,
and `ensure_not_fenced` tells whether messages that were read may still be sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from oncemq.journal.rows import Rows, TablesWanted

#: In front of every payload; files/group.py draws the layout.
RECORD_HEADER_BYTES = 48
#: In front of the records of every group; files/group.py draws the layout.
GROUP_HEADER_BYTES = 64
#: If the disk damages one snapshot, the other one leads to the same state.
SNAPSHOTS_KEPT = 2


def record_bytes(size: int) -> int:
    """Return the number of bytes that a payload of `size` bytes needs in the journal."""
    return RECORD_HEADER_BYTES + size + -size % 8


def record_end(position: int, size: int) -> int:
    """Return the position after a record, which is that of the next record in the same group."""
    return position + record_bytes(size)


class WriteSlot(msgspec.Struct, frozen=True, gc=False):
    """Where the next group is written, and how much it may hold."""

    #: Of the group's first record.
    position: int
    #: Space for records and events together.
    free_bytes: int
    #: How much of it may be new messages: 0 when the disk is full. The rest is reserved for acks and moves.
    writable_bytes: int
    #: How much of it may be messages of a transaction whose acks free at least as many bytes. The last extent is
    #: reserved even from these: plain acks and moves must always find space.
    reserve_bytes: int = 0


class Record(msgspec.Struct, frozen=True, gc=False):
    """A payload and its identification. Both are verified when the record is read."""

    position: int
    topic_id: int
    #: -1 if the offset is not known yet (a stage).
    first_offset: int
    count: int
    checksum: int
    payload: bytes | memoryview


class RecordHead(msgspec.Struct, frozen=True, gc=False):
    """A record without its payload, as `scan` returns it."""

    position: int
    topic_id: int
    first_offset: int
    count: int
    checksum: int
    size: int


class RecordRef(msgspec.Struct, frozen=True, gc=False):
    """A record to read. `read` returns exactly this record or raises RecordCorrupt."""

    position: int
    topic_id: int
    #: As stored in the record, or -1 if that is not known (the record may hold -1 as well).
    first_offset: int
    size: int


class Group(msgspec.Struct, frozen=True, gc=False):
    time_ms: int
    events: bytes
    records: Sequence[Record]
    #: What it changes in the SQL tables, if the journal has them.
    rows: Rows | None = None


class ReplayedGroup(msgspec.Struct, frozen=True, gc=False):
    """A group that recovery has read and verified. Files verify its records as well, PostgreSQL only reads of them."""

    sequence: int
    time_ms: int
    events: bytes
    #: Position after this group, where the next one begins. 0 = not known: only the file journal sets it.
    end: int = 0


class LoadedJournal(msgspec.Struct, frozen=True):
    """What recovery starts from: the chunks of the newest snapshot, and the groups after it, in order."""

    snapshot: Sequence[bytes] | None
    groups: Iterator[ReplayedGroup]


class Extent(msgspec.Struct, frozen=True, gc=False):
    number: int
    #: Bytes in use, live or not.
    used_bytes: int
    #: Replay from either of the two newest snapshots does not need it. It is released once nothing in it is live.
    is_covered_by_snapshots: bool


class SnapshotWriter(Protocol):
    """Takes the chunks of a state. It must be the state after the group that was synced last when writing began."""

    def add(self, chunk: bytes) -> None: ...

    def finish(self) -> None:
        """Start to make it durable in the background. A later `maintain` puts it in place."""

    def abort(self) -> None: ...


class Journal(Protocol):
    #: Random, created with the journal.
    journal_id: bytes
    extent_bytes: int
    #: Maximum size of the records and events of one group. It is less than `extent_bytes`.
    group_capacity_bytes: int
    #: Bytes written since the newest snapshot, which a restart has to replay.
    replay_bytes: int
    #: Increases with each take-over. 0 if there are no take-overs, except in a copy, which has the term of its source.
    term: int
    #: Which rows for the SQL tables a group has to bring.
    tables_wanted: TablesWanted

    def describe(self) -> str:
        """Return its location, as text for people and without a password."""

    def load(self) -> LoadedJournal: ...

    def next_slot(self, need_bytes: int) -> WriteSlot:
        """Return the slot for a group that needs this many bytes. A new extent is begun if the current one is too full.

        If there is not enough space, `free_bytes` is smaller than `need_bytes`."""

    def append(self, group: Group) -> None:
        """Write a group to the slot that was returned last. It is not durable before `sync`."""

    def sync(self) -> None: ...

    def confirm(self) -> None:
        """Append and sync an empty group, unless the last group is empty. If the disk damages the group before it
        later, that is recognised as damage, and not taken for a group whose write was interrupted."""

    def read(self, wanted: Sequence[RecordRef]) -> Sequence[tuple[bytes | memoryview, int]]:
        """Return payloads and their checksums, verified. Raise RecordCorrupt. Its cause is an OSError if a read of the
        disk failed, which may have taken long."""

    def ensure_not_fenced(self) -> None:
        """Raise JournalFenced unless this is still the only writer. It is called before every response."""

    def raise_term(self, term: int) -> None:
        """Raise the term to at least `term`. Clients ignore a broker whose term is lower than one they have seen."""

    def begin_snapshot(self) -> SnapshotWriter | None:
        """Return None while another snapshot is being written, or if there is no space for one."""

    def extents(self) -> list[Extent]: ...

    def scan(self, extent: int, position: int, bytes_max: int) -> tuple[list[RecordHead], int]:
        """Return records of an extent from a position on (0 = its start), and the position to continue at (0 = end)."""

    def release(self, live: Mapping[int, int]) -> None:
        """Release every extent that replay does not need and that has no entry in `live`."""

    def maintain(self) -> None:
        """Take over the results of background work: spare segments and finished snapshots."""

    def writable_bytes(self) -> int:
        """Return how many bytes of new messages can be written. 0 means that the disk is full."""

    def close(self) -> None: ...


def is_empty(group: Group) -> bool:
    return not group.events and not group.records


def group_bytes(group: Group) -> int:
    """Return the number of bytes that a group needs, without the padding after it."""
    return GROUP_HEADER_BYTES + sum(record_bytes(len(record.payload)) for record in group.records) + len(group.events)
