"""Fixtures of journal tests: a journal on each backend, and functions that write groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Protocol

from oncemq.disk.os_disk import OsDisk
from oncemq.journal.contract import Group, Journal, Record, RecordRef, ReplayedGroup, record_bytes, record_end
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.memory import MemoryJournal
from oncemq.journal.postgres.journal import PostgresJournal
from oncemq.journal.postgres.standby import open_postgres
from oncemq.journal.worker import InlineWorker, Worker
from oncemq.protocol.batch import checksum
from tests.simulation.environment.disk import SimDisk

SEGMENT_BYTES = 32 * 1024
BLOCK_BYTES = 512
JOURNAL_ID = b"0123456789abcdef"
#: Payload whose group fills most of a segment.
LARGE = b"L" * 20_000


def open_sim(disk: SimDisk, worker: Worker | None = None) -> FileJournal:
    return FileJournal(
        disk, worker or InlineWorker(), segment_bytes=SEGMENT_BYTES, block_bytes=BLOCK_BYTES, journal_id=JOURNAL_ID
    )


def loaded(disk: SimDisk, worker: Worker | None = None) -> tuple[FileJournal, list[ReplayedGroup]]:
    journal = open_sim(disk, worker)
    return journal, list(journal.load().groups)


def new_journal(seed: int = 1, worker: Worker | None = None) -> tuple[SimDisk, FileJournal]:
    disk = SimDisk(Random(seed))
    return disk, loaded(disk, worker)[0]


class Backend(Protocol):
    def open(self) -> Journal: ...

    def reopen(self) -> Journal:
        """Return the journal after the process was killed."""


class MemoryBackend:
    def __init__(self) -> None:
        self._journal = MemoryJournal(extent_bytes=SEGMENT_BYTES)

    def open(self) -> Journal:
        return self._journal

    def reopen(self) -> Journal:
        self._journal = self._journal.reopen()
        return self._journal


class SimBackend:
    def __init__(self) -> None:
        self._disk = SimDisk(Random(1))

    def open(self) -> Journal:
        return open_sim(self._disk)

    def reopen(self) -> Journal:
        self._disk.power_loss()
        return self.open()


class OsBackend:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._journal: FileJournal | None = None

    def open(self) -> Journal:
        self._journal = FileJournal(
            OsDisk(self._path), InlineWorker(), segment_bytes=SEGMENT_BYTES, block_bytes=BLOCK_BYTES
        )
        return self._journal

    def reopen(self) -> Journal:
        assert self._journal is not None
        # As after a kill: the lock is released, and nothing is confirmed.
        self._journal._lock.close()
        return self.open()


class PostgresBackend:
    """In an empty database."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._journal: PostgresJournal | None = None

    def open(self) -> Journal:
        self._journal = open_postgres(self._dsn, lease_ms=60_000, extent_bytes=SEGMENT_BYTES, worker=InlineWorker())
        return self._journal

    def reopen(self) -> Journal:
        assert self._journal is not None
        crash(self._journal)
        return self.open()


def crash(journal: PostgresJournal) -> None:
    """As after a kill, when the lease is over."""
    journal._stop_renewer()
    if journal._connection.closed:
        return
    journal._connection.execute("update oncemq.journal_lease set expires_at = 'epoch'")
    journal._connection.close()


#: By name: from a folder, or from the DSN of an empty database.
BACKENDS: dict[str, Callable[[Path, Callable[[], str]], Backend]] = {
    "memory": lambda path, dsn: MemoryBackend(),
    "simulated": lambda path, dsn: SimBackend(),
    "files": lambda path, dsn: OsBackend(path),
    "postgresql": lambda path, dsn: PostgresBackend(dsn()),
}


def begin(
    journal: Journal, payloads: Sequence[bytes] = (), events: bytes = b"event", time_ms: int = 1
) -> list[RecordRef]:
    """Append a group of topic 7, without a sync. Return references to its records."""
    need = sum(record_bytes(len(payload)) for payload in payloads) + len(events)
    place = journal.next_slot(need)
    assert place.free_bytes >= need, "no room"
    position = place.position
    records = []
    for offset, payload in enumerate(payloads):
        records.append(Record(position, 7, offset, 1, checksum(payload), payload))
        position = record_end(position, len(payload))
    journal.append(Group(time_ms, events, records))
    return [RecordRef(record.position, 7, record.first_offset, len(record.payload)) for record in records]


def write(
    journal: Journal, payloads: Sequence[bytes] = (), events: bytes = b"event", time_ms: int = 1
) -> list[RecordRef]:
    wanted = begin(journal, payloads, events, time_ms)
    journal.sync()
    return wanted


def snapshot(journal: Journal, chunks: Sequence[bytes] = (b"state",)) -> None:
    writer = journal.begin_snapshot()
    assert writer is not None
    for chunk in chunks:
        writer.add(chunk)
    writer.finish()
    journal.maintain()
    # The second call takes over what the first one has started: the reserve of the next snapshot.
    journal.maintain()


def events_of(groups: Sequence[ReplayedGroup]) -> list[bytes]:
    return [group.events for group in groups if group.events]
