"""The journal in PostgreSQL, under the contract of journal/contract.py: one transaction per group.

Every append checks its term and the group that it follows, in its own transaction. A take-over begins a new term first.
So if two brokers both assume to be the writer, only one can write. Any error is final, also a COMMIT whose answer did
not arrive: recovery finds out what the database holds then.

Snapshots are written, and rows that are not needed are deleted, in the background, through another connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec
import psycopg

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
    group_bytes,
    is_empty,
)
from oncemq.journal.postgres.background import BackgroundConnection
from oncemq.journal.postgres.connection import Connection, failed, is_term_over
from oncemq.journal.postgres.extents import PostgresExtents
from oncemq.journal.postgres.lease import BrokerLeaseRenewer, Lease, now_s
from oncemq.journal.postgres.reader import read_groups, read_records, scan_heads
from oncemq.journal.postgres.snapshots import PostgresSnapshots, SnapshotPosition
from oncemq.journal.postgres.sql import query
from oncemq.journal.postgres.writer import append_group, heavy_ms, journal_seed
from oncemq.journal.rows import TablesWanted
from oncemq.journal.worker import Worker
from oncemq.protocol import errors

#: PostgreSQL does not tell how full its disk is.
_WRITABLE_BYTES = 1 << 50


class TakeOver(msgspec.Struct, frozen=True):
    """What a take-over has read from the database."""

    url: str
    location: str
    journal_id: bytes
    extent_bytes: int
    are_tables_current: bool
    last_sequence: int
    last_position: int


class PostgresJournal:
    def __init__(
        self, connection: Connection, lease: Lease, taken: TakeOver, worker: Worker, warnings: list[str]
    ) -> None:
        self.journal_id = taken.journal_id
        self.extent_bytes = taken.extent_bytes
        self.group_capacity_bytes = taken.extent_bytes - GROUP_HEADER_BYTES
        self.replay_bytes = 0
        self.term = lease.term
        self.warnings = warnings
        self.tables_wanted: TablesWanted = "changes" if taken.are_tables_current else "all"
        self._url = taken.url
        self._location = taken.location
        self._connection = connection
        self._lease = lease
        self._background = BackgroundConnection(taken.url, lease)
        self._renewer: BrokerLeaseRenewer | None = None
        self._worker = worker
        self._extents = PostgresExtents(taken.location, taken.extent_bytes, worker, self._background)
        self._seed = journal_seed(taken.journal_id)
        self._snapshots = PostgresSnapshots(taken.location, worker, self._seed, self._background)
        self._failure: errors.JournalFailed | None = None
        self._is_loaded = False
        #: Sequence of the last group that was appended, and position of the next one.
        self._sequence = taken.last_sequence
        self._position = taken.last_position
        self._unsynced: Group | None = None
        self._unsynced_bytes = 0
        self._is_last_empty = True
        self._time_ms = 0
        #: Bytes from the newest snapshot to the one that is being written.
        self._snapshot_bytes = 0

    def describe(self) -> str:
        return self._location

    # Every failure is final.

    def _check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._fail(failed(self._location, what, error)) from error

    def _fail(self, failure: errors.JournalFailed) -> errors.JournalFailed:
        if not isinstance(failure, errors.JournalFenced) and is_term_over(self._url, self.term):
            failure = errors.JournalFenced(f"{failure}: another broker has taken over this journal")
        self._failure = self._failure or failure
        self._lease.lose()
        return failure

    def finish_copy(self) -> None:
        """Do nothing: the first snapshot of a copy completes it, in one transaction."""

    # Recovery.

    def load(self) -> LoadedJournal:
        """Begin recovery. All groups must be consumed before anything else is called."""
        self._check()
        self._renewer = BrokerLeaseRenewer(self._url, self._lease)
        with self._recovering():
            chunks = self._snapshots.find(self._connection, self.warnings)
            newest = self._snapshots.kept[-1].sequence if self._snapshots.kept else 0
            self._extents.find(self._connection)
            self._extents.begin(self._active)
        return LoadedJournal(chunks, self._replay(newest))

    @contextmanager
    def _recovering(self) -> Iterator[None]:
        """Close the journal if it can't be recovered, so that its lease is released."""
        try:
            with self._failing("recovery"):
                yield
        except errors.JournalError:
            self.close()
            raise

    def _replay(self, sequence: int) -> Iterator[ReplayedGroup]:
        with self._recovering():
            for stored in read_groups(self._connection, self._location, self._seed, sequence, self._sequence):
                self.replay_bytes += stored.size
                self._time_ms = stored.time_ms
                self._is_last_empty = stored.size == GROUP_HEADER_BYTES
                yield ReplayedGroup(stored.sequence, stored.time_ms, stored.events)
        self._stop_renewer()
        self._is_loaded = True

    def _stop_renewer(self) -> None:
        renewer, self._renewer = self._renewer, None
        if renewer is not None:
            renewer.stop()

    # Writing.

    @property
    def _active(self) -> int:
        return self._position // self.extent_bytes

    def _free_bytes(self) -> int:
        return (self._active + 1) * self.extent_bytes - self._position - GROUP_HEADER_BYTES

    def next_slot(self, need_bytes: int) -> WriteSlot:
        self._check()
        if min(need_bytes, self.extent_bytes - GROUP_HEADER_BYTES) > self._free_bytes():
            self._position = (self._active + 1) * self.extent_bytes
        self._extents.begin(self._active)
        free = self._free_bytes()
        return WriteSlot(self._position + GROUP_HEADER_BYTES, free, free)

    def append(self, group: Group) -> None:
        """Keep the group until `sync`, which sends it in one go."""
        self._check()
        assert self._unsynced is None, "the next group must not be written before the last one is synced"
        used = group_bytes(group)
        assert used <= self._free_bytes() + GROUP_HEADER_BYTES, "a group is larger than its slot"
        self._unsynced = group
        self._unsynced_bytes = used + -used % 8

    def sync(self) -> None:
        self._check()
        group, size = self._unsynced, self._unsynced_bytes
        if group is None:
            return
        with self._failing("a commit"):
            self._commit(group, size)
        self._unsynced = None
        self._extents.add_bytes(self._active, size)
        self._sequence += 1
        self._position += size
        self.replay_bytes += size
        self._time_ms = group.time_ms
        self._is_last_empty = is_empty(group)
        if group.rows is not None and group.rows.has_all:
            self.tables_wanted = "changes"
        elif group.rows is not None and group.rows.are_stale:
            # The next take-over writes all tables again.
            self.tables_wanted = ""

    def _commit(self, group: Group, size: int) -> None:
        may_take_ms = heavy_ms(group, size, self._lease.lease_ms)
        if may_take_ms:
            # No standby may take over in the meantime. If this broker dies, a standby waits that much longer.
            self._lease.renew(self._connection, self._lease.lease_ms + may_take_ms)
        sent_s = now_s()
        append_group(
            self._connection, self._lease, self._seed, self._sequence + 1, self._position, size, group, may_take_ms
        )
        if may_take_ms:
            self._lease.renew(self._connection)
        else:
            self._lease.renewed(sent_s)

    def confirm(self) -> None:
        self._check()
        if not self._is_last_empty:
            self._append_empty()

    def _append_empty(self) -> None:
        self.next_slot(0)
        self.append(Group(self._time_ms, b"", ()))
        self.sync()

    # Reading.

    def read(self, wanted: Sequence[RecordRef]) -> list[tuple[bytes, int]]:
        self._check()
        with self._failing("a read"):
            return read_records(self._connection, self._location, wanted)

    def scan(self, extent: int, position: int, bytes_max: int) -> tuple[list[RecordHead], int]:
        self._check()
        begin = position or extent * self.extent_bytes
        with self._failing("a read"):
            return scan_heads(self._connection, begin, (extent + 1) * self.extent_bytes, bytes_max)

    # The lease.

    def ensure_not_fenced(self) -> None:
        if not self._lease.is_held:
            self._renew()

    def _renew(self) -> None:
        self._check()
        with self._failing("renewing the lease"):
            if not self._lease.renew(self._connection):
                raise self._fail(self._fenced())

    def _fenced(self) -> errors.JournalFenced:
        return errors.JournalFenced(f"{self._location}: another broker has taken over this journal")

    def raise_term(self, term: int) -> None:
        self._check()
        if term > self.term:
            with self._failing("raising the term"):
                if self._connection.execute(query("raise_term"), (term, self.term)).rowcount != 1:
                    raise self._fail(self._fenced())
                self._connection.check_replicated()
            self.term = self._lease.term = term

    # Snapshots and space.

    def begin_snapshot(self) -> SnapshotWriter | None:
        self._check()
        assert self._unsynced is None, "a snapshot holds only synced state"
        if not self._snapshots.can_begin:
            return None
        kept = self._snapshots.kept
        if kept and kept[-1].sequence == self._sequence:
            # An empty group separates two snapshots of the same state, so that the second one frees extents.
            self._append_empty()
        self._snapshot_bytes = self.replay_bytes
        return self._snapshots.begin(SnapshotPosition(self._sequence, self._position))

    def extents(self) -> list[Extent]:
        return self._extents.list_extents(self._active, self._snapshots.needed_from)

    def release(self, live: Mapping[int, int]) -> None:
        self._check()
        self._extents.release(live, self._active, self._snapshots.needed_from)

    def maintain(self) -> None:
        self._check()
        if self._lease.is_due:
            self._renew()
        try:
            self._extents.maintain()
            if self._snapshots.maintain():
                self.replay_bytes -= self._snapshot_bytes
        except errors.JournalFenced as fenced:
            raise self._fail(fenced) from fenced

    def writable_bytes(self) -> int:
        """Return a large number, since the limit is not known: if PostgreSQL's disk is full, a commit fails, and the
        broker stops."""
        return _WRITABLE_BYTES

    def close(self) -> None:
        """Confirm the last group and release the lease, so that a standby need not wait for its end. It may be called
        more than once."""
        try:
            if self._failure is None and self._is_loaded and self._unsynced is None:
                self.confirm()
        finally:
            self._stop_renewer()
            self._worker.close()
            self._failure = self._failure or errors.JournalFailed("the journal is closed")
            self._lease.lose()
            with suppress(psycopg.Error):
                # A group that failed may have left a transaction open.
                self._connection.rollback()
                self._connection.execute(query("release_lease"), (self.term,))
            self._connection.close()
            self._background.close()
