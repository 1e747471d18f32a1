"""Snapshots in PostgreSQL: collected in memory, and written in the background in one transaction.

The two newest are kept: if the disk damages one, the other leads to the same state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import xxhash

from oncemq.journal.contract import SNAPSHOTS_KEPT
from oncemq.journal.postgres.arrays import Int8s, signed
from oncemq.journal.postgres.background import BackgroundConnection, RetryPause
from oncemq.journal.postgres.connection import Connection
from oncemq.journal.postgres.sql import query
from oncemq.journal.worker import Task, Worker
from oncemq.protocol import errors
from oncemq.protocol.version import SNAPSHOT_VERSION


class SnapshotPosition(msgspec.Struct, frozen=True, gc=False):
    """The last group that a snapshot holds, and where the next group begins."""

    sequence: int
    position: int


class _Damaged(Exception):
    pass


class PostgresSnapshotWriter:
    def __init__(self, owner: PostgresSnapshots, position: SnapshotPosition) -> None:
        self._owner = owner
        self.position = position
        self.chunks: list[bytes] = []

    def add(self, chunk: bytes) -> None:
        self.chunks.append(bytes(chunk))

    def finish(self) -> None:
        self._owner.finish(self)

    def abort(self) -> None:
        self._owner.abort(self)


class PostgresSnapshots:
    def __init__(self, location: str, worker: Worker, seed: int, background: BackgroundConnection) -> None:
        self._location = location
        self._worker = worker
        self._seed = seed
        self._background = background
        self._pause = RetryPause(location, "writing a snapshot")
        self._writer: PostgresSnapshotWriter | None = None
        self._task: Task | None = None
        #: At most two, the newest last. Damaged ones are not included, and are deleted when the next one is written.
        self.kept: list[SnapshotPosition] = []

    @property
    def needed_from(self) -> int:
        """The position from which on replay from either of the two newest snapshots needs the journal. 0 while there
        are fewer than two."""
        return self.kept[0].position if len(self.kept) == SNAPSHOTS_KEPT else 0

    # Recovery.

    def find(self, connection: Connection, warnings: list[str]) -> list[bytes] | None:
        """Return the chunks of the newest good snapshot."""
        found: list[bytes] | None = None
        for sequence, position, version, count in connection.execute(query("snapshots")).fetchall():
            if version > SNAPSHOT_VERSION:
                raise errors.JournalVersion(
                    f"{self._location} has snapshot format {version}; this OnceMQ reads up to {SNAPSHOT_VERSION}"
                )
            if found is None:
                try:
                    found = self._read(connection, sequence, count)
                except _Damaged as damage:
                    warnings.append(
                        f"{self._location}: snapshot {sequence} is damaged ({damage}); an older one is used"
                    )
                    continue
            self.kept.insert(0, SnapshotPosition(sequence, position))
        del self.kept[:-SNAPSHOTS_KEPT]
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

    # Writing.

    def begin(self, position: SnapshotPosition) -> PostgresSnapshotWriter | None:
        """Return None while another one is being written, or during a pause after a failure."""
        if not self.can_begin:
            return None
        self._writer = PostgresSnapshotWriter(self, position)
        return self._writer

    @property
    def can_begin(self) -> bool:
        return self._writer is None and self._pause.is_over

    def finish(self, writer: PostgresSnapshotWriter) -> None:
        if writer is self._writer and self._task is None:
            kept = self._kept_with(writer.position)
            self._task = self._worker.start(self._write(writer.position, writer.chunks, kept), "write a snapshot")

    def _kept_with(self, position: SnapshotPosition) -> list[SnapshotPosition]:
        return [*self.kept, position][-SNAPSHOTS_KEPT:]

    def abort(self, writer: PostgresSnapshotWriter) -> None:
        if writer is self._writer and self._task is None:
            self._writer = None

    def _write(
        self, position: SnapshotPosition, chunks: Sequence[bytes], kept: Sequence[SnapshotPosition]
    ) -> Iterator[None]:
        connection = self._background.connection()
        with connection.transaction():
            # A damaged snapshot may have the same sequence.
            older = Int8s([one.sequence for one in kept if one is not position])
            connection.execute(query("delete_snapshots"), (older,))
            head = (position.sequence, position.position, SNAPSHOT_VERSION, len(chunks))
            connection.execute(query("add_snapshot"), head)
            for number, chunk in enumerate(chunks):
                checksum = self._checksum(position.sequence, number, chunk)
                connection.execute(query("add_chunk"), (position.sequence, number, checksum, chunk))
            connection.execute(query("check_term"), (self._background.lease.term,))
        connection.check_replicated()
        yield

    def maintain(self) -> bool:
        """Return True if a snapshot has become valid. Raise JournalFenced."""
        task, writer = self._task, self._writer
        if task is None or writer is None or not task.done:
            return False
        self._task = self._writer = None
        if task.error is not None:
            self._pause.begin(task.error)
            return False
        self.kept = self._kept_with(writer.position)
        return True
