"""Snapshots in PostgreSQL: gathered in memory, written beside the loop in one transaction; committed, they count.

The two newest are kept: if the disk damages one, the other still leads to the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import xxhash

from oncemq import errors
from oncemq.journal.postgres_arrays import signed
from oncemq.journal.postgres_connection import Connection
from oncemq.journal.sql import query
from oncemq.journal.worker import Task, Worker
from oncemq.version import SNAPSHOT_VERSION

KEPT = 2


class SnapshotPlace(msgspec.Struct, frozen=True, gc=False):
    """The last group that it holds, and where the next one begins."""

    sequence: int
    position: int


class _Damaged(Exception):
    pass


class PostgresSnapshotWriter:
    def __init__(self, owner: PostgresSnapshots, place: SnapshotPlace) -> None:
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
    def __init__(self, worker: Worker, seed: int, term: int, beside: Callable[[], Connection]) -> None:
        """`beside`: the connection for work beside the loop."""
        self._worker = worker
        self._seed = seed
        self._term = term
        self._beside = beside
        self._writer: PostgresSnapshotWriter | None = None
        self._task: Task | None = None
        #: At most two, the newest last.
        self.kept: list[SnapshotPlace] = []

    @property
    def behind_position(self) -> int:
        """Replay from either of the two newest needs nothing before this; 0 while there are fewer than two."""
        return self.kept[0].position if len(self.kept) == KEPT else 0

    # Recovery.

    def find(self, connection: Connection, where: str, warnings: list[str]) -> list[bytes] | None:
        """The newest good snapshot's chunks."""
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
            self.kept.insert(0, SnapshotPlace(sequence, position))
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

    def begin(self, place: SnapshotPlace) -> PostgresSnapshotWriter | None:
        """None while there is another one."""
        if self._writer is not None:
            return None
        self._writer = PostgresSnapshotWriter(self, place)
        return self._writer

    @property
    def can_begin(self) -> bool:
        return self._writer is None

    def finish(self, writer: PostgresSnapshotWriter) -> None:
        if writer is self._writer and self._task is None:
            self._task = self._worker.start(self._write(writer.place, writer.chunks), "write a snapshot")

    def abort(self, writer: PostgresSnapshotWriter) -> None:
        if writer is self._writer and self._task is None:
            self._writer = None

    def _write(self, place: SnapshotPlace, chunks: Sequence[bytes]) -> Iterator[None]:
        connection = self._beside()
        with connection.transaction():
            head = (place.sequence, place.position, SNAPSHOT_VERSION, len(chunks))
            connection.execute(query("add_snapshot"), head)
            for number, chunk in enumerate(chunks):
                checksum = self._checksum(place.sequence, number, chunk)
                connection.execute(query("add_chunk"), (place.sequence, number, checksum, chunk))
            connection.execute(query("drop_snapshots"), (KEPT,))
            connection.execute(query("check_term"), (self._term,))
        yield

    def maintain(self) -> bool:
        """True: one was put in place. Raises what writing it has raised."""
        task, writer = self._task, self._writer
        if task is None or writer is None or not task.done:
            return False
        self._task = self._writer = None
        if task.error is not None:
            raise task.error
        self.kept = [*self.kept, writer.place][-KEPT:]
        return True
