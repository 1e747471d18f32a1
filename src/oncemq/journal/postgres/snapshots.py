"""Snapshots in PostgreSQL: gathered in memory, written beside the loop in one transaction; committed, they count.

The two newest are kept: if the disk damages one, the other still leads to the same state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import xxhash

from oncemq.journal.postgres.arrays import Int8s, signed
from oncemq.journal.postgres.background import BackgroundConnection, RetryPause
from oncemq.journal.postgres.connection import Connection
from oncemq.journal.postgres.sql import query
from oncemq.journal.worker import Task, Worker
from oncemq.protocol import errors
from oncemq.protocol.version import SNAPSHOT_VERSION

KEPT = 2


class SnapshotPosition(msgspec.Struct, frozen=True, gc=False):
    """The last group that it holds, and where the next one begins."""

    sequence: int
    position: int


class _Damaged(Exception):
    pass


class PostgresSnapshotWriter:
    def __init__(self, owner: PostgresSnapshots, place: SnapshotPosition) -> None:
        self._owner = owner
        self.place = place
        self.chunks: list[bytes] = []

    def add(self, chunk: bytes) -> None:
        self.chunks.append(bytes(chunk))

    def finish(self) -> None:
        self._owner.finish(self)

    def abort(self) -> None:
        self._owner.abort(self)


class PostgresSnapshots:
    def __init__(self, where: str, worker: Worker, seed: int, background: BackgroundConnection) -> None:
        self._location = where
        self._worker = worker
        self._seed = seed
        self._background = background
        self._pause = RetryPause(where, "writing a snapshot")
        self._writer: PostgresSnapshotWriter | None = None
        self._task: Task | None = None
        #: At most two, the newest last. Damaged ones don't count, and go with the next that is written.
        self.kept: list[SnapshotPosition] = []

    @property
    def behind_position(self) -> int:
        """Replay from either of the two newest needs nothing before this; 0 while there are fewer than two."""
        return self.kept[0].position if len(self.kept) == KEPT else 0

    # Recovery.

    def find(self, connection: Connection, warnings: list[str]) -> list[bytes] | None:
        """The newest good snapshot's chunks."""
        where = self._location
        found: list[bytes] | None = None
        for sequence, position, version, count in connection.execute(query("snapshots")).fetchall():
            if version > SNAPSHOT_VERSION:
                raise errors.JournalVersion(f"{where} holds a snapshot of format {version}; this is {SNAPSHOT_VERSION}")
            if found is None:
                try:
                    found = self._read(connection, sequence, count)
                except _Damaged as damage:
                    warnings.append(f"{where}: snapshot {sequence} is damaged ({damage}); an older one takes its place")
                    continue
            self.kept.insert(0, SnapshotPosition(sequence, position))
        del self.kept[:-KEPT]
        return found

    def _read(self, connection: Connection, sequence: int, count: int) -> list[bytes]:
        rows = connection.execute(query("chunks"), (sequence,), binary=True).fetchall()
        if [number for number, _, _ in rows] != list(range(count)):
            raise _Damaged(f"it has {len(rows)} chunks, not {count}")
        for number, checksum, chunk in rows:
            if self._checksum(sequence, number, chunk) != checksum:
                raise _Damaged(f"chunk {number} does not match its checksum")
        return [chunk for _, _, chunk in rows]

    def _checksum(self, sequence: int, number: int, chunk: bytes) -> int:
        digest = xxhash.xxh3_64(b"%d %d " % (sequence, number), seed=self._seed)
        digest.update(chunk)
        return signed(digest.intdigest())

    # Writing one.

    def begin(self, place: SnapshotPosition) -> PostgresSnapshotWriter | None:
        """None while there is another one, or a pause."""
        if not self.can_begin:
            return None
        self._writer = PostgresSnapshotWriter(self, place)
        return self._writer

    @property
    def can_begin(self) -> bool:
        return self._writer is None and self._pause.is_over

    def finish(self, writer: PostgresSnapshotWriter) -> None:
        if writer is self._writer and self._task is None:
            kept = self._kept_with(writer.place)
            self._task = self._worker.start(self._write(writer.place, writer.chunks, kept), "write a snapshot")

    def _kept_with(self, place: SnapshotPosition) -> list[SnapshotPosition]:
        return [*self.kept, place][-KEPT:]

    def abort(self, writer: PostgresSnapshotWriter) -> None:
        if writer is self._writer and self._task is None:
            self._writer = None

    def _write(
        self, place: SnapshotPosition, chunks: Sequence[bytes], kept: Sequence[SnapshotPosition]
    ) -> Iterator[None]:
        connection = self._background.connection()
        with connection.transaction():
            # A damaged one may have this very sequence.
            older = Int8s([one.sequence for one in kept if one is not place])
            connection.execute(query("drop_snapshots"), (older,))
            head = (place.sequence, place.position, SNAPSHOT_VERSION, len(chunks))
            connection.execute(query("add_snapshot"), head)
            for number, chunk in enumerate(chunks):
                checksum = self._checksum(place.sequence, number, chunk)
                connection.execute(query("add_chunk"), (place.sequence, number, checksum, chunk))
            connection.execute(query("check_term"), (self._background.lease.term,))
        yield

    def maintain(self) -> bool:
        """True: one was put in place. Raises JournalFenced."""
        task, writer = self._task, self._writer
        if task is None or writer is None or not task.done:
            return False
        self._task = self._writer = None
        if task.error is not None:
            self._pause.begin(task.error)
            return False
        self.kept = self._kept_with(writer.place)
        return True
