"""`journal copy`: copies the journal of a stopped broker to another location, of the same kind or another.

The state of the source is captured as a snapshot. Every record that it needs is appended to the target. The snapshot,
with the new positions of the records, completes the target. Until then nobody can use the target. A folder has
`journal.copying` instead of `journal.meta`. A database has a first group that recovery refuses, from the transaction on
that creates its tables. Running the copy again starts over in a folder, and appends to what a database holds. If the
target already holds exactly the state of the source, the copy is complete.

Both journals have the same id, so that the broker, its topics and its sessions are the same for every client. The term
of the target is not below that of the source, so that clients accept its broker.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from oncemq.broker.recovery import UNFINISHED_COPY, new_engine, recover, replay
from oncemq.broker.sql_projection import project_all
from oncemq.config.settings import is_database
from oncemq.engine.engine import Engine
from oncemq.engine.snapshot.capture import Image, decode_images
from oncemq.engine.snapshot.relocation import NeededRecord, needed_records, relocated
from oncemq.journal.contract import Group, Journal, Record, RecordRef, record_bytes, record_end
from oncemq.journal.rows import Rows
from oncemq.protocol import errors
from oncemq.protocol.limits import Limits

#: Called with bytes copied, and bytes in total.
Progress = Callable[[int, int], None]

_GROUP_BYTES = 1024 * 1024
#: As in normal operation: if the disk damages one, the other leads to the same state.
_SNAPSHOTS = 2
_SNAPSHOT_ATTEMPTS = 5
_SNAPSHOT_TIMEOUT_S = 600
_SPACE_TIMEOUT_S = 10
#: Long, because no client waits for a copy, and because the other journal may delay it.
_LEASE_MS = 30_000


class Target(Journal, Protocol):
    """A journal to which a copy is made."""

    def finish_copy(self) -> None:
        """The copy is complete: from here on it is a journal that can be served."""


class Copied(msgspec.Struct, frozen=True):
    source: str
    target: str
    topics: int
    subscriptions: int
    sessions: int
    records: int
    record_bytes: int


def copy(source: str, target: str, progress: Progress | None = None) -> Copied:
    """Copy between two locations, each `file:DIR`, a folder, or `postgresql://…`. Raise JournalError if there is no
    source, or if the target holds a journal already."""
    limits = Limits()
    source_journal = open_source(source)
    try:
        engine = recover(source_journal, limits, Counter())
        target_journal = open_target(target, source_journal)
        try:
            return copy_journal(engine, source_journal, target_journal, limits, progress)
        finally:
            target_journal.close()
    finally:
        source_journal.close()


def open_source(location: str) -> Journal:
    if is_database(location):
        from oncemq.journal.postgres.standby import open_postgres

        return open_postgres(location, lease_ms=_LEASE_MS, may_create=False)
    from oncemq.journal.files.journal import open_files
    from oncemq.journal.files.layout import COPYING, META

    folder = Path(location.removeprefix("file:"))
    if not (folder / META).exists() and not (folder / COPYING).exists():
        raise errors.JournalError(f"there is no journal in {folder}")
    return open_files(folder)


def open_target(location: str, source: Journal) -> Target:
    """Open the target. If it does not exist, it is created with the id and extent size of the source."""
    if is_database(location):
        from oncemq.journal.postgres.standby import open_postgres

        return open_postgres(
            location,
            lease_ms=_LEASE_MS,
            extent_bytes=source.extent_bytes,
            journal_id=source.journal_id,
            first_events=UNFINISHED_COPY,
        )
    from oncemq.disk.os_disk import OsDisk
    from oncemq.journal.files.journal import FileJournal
    from oncemq.journal.worker import ThreadWorker

    disk = OsDisk(location.removeprefix("file:"))
    return FileJournal(
        disk, ThreadWorker(), segment_bytes=source.extent_bytes, journal_id=source.journal_id, is_copy=True
    )


def copy_journal(
    engine: Engine, source: Journal, target: Target, limits: Limits, progress: Progress | None = None
) -> Copied:
    """Copy the source, whose recovered state is `engine`. The target is complete when this returns."""
    chunks = list(_capture(engine))
    needed = sorted(needed_records(chunks), key=lambda record: record.position)
    if not _is_complete(chunks, source, target, limits):
        _write_target(chunks, needed, source, target, limits, engine.state.time_ms, progress)
    state = engine.state
    return Copied(
        source.describe(),
        target.describe(),
        len(state.topics),
        state.subscriptions,
        len(state.sessions),
        len(needed),
        sum(record.size for record in needed),
    )


def _write_target(
    chunks: Sequence[bytes],
    needed: Sequence[NeededRecord],
    source: Journal,
    target: Target,
    limits: Limits,
    time_ms: int,
    progress: Progress | None,
) -> None:
    target.raise_term(source.term)
    _append(target, time_ms, UNFINISHED_COPY)
    positions = _copy_records(needed, source, target, time_ms, progress)
    moved = [relocated(chunk, positions) for chunk in chunks]
    # Check that the snapshot can be restored before it is written.
    restored = new_engine(target, limits)
    restored.restore(moved)
    source.ensure_not_fenced()
    if target.tables_wanted:
        _append(target, time_ms, b"", project_all(restored.state))
    for _ in range(_SNAPSHOTS):
        _write_snapshot(target, moved)
    target.finish_copy()


def _is_complete(chunks: Sequence[bytes], source: Journal, target: Journal, limits: Limits) -> bool:
    """Return True if the target holds the same state already, and False if it holds an unfinished copy or nothing.
    Raise JournalError if it holds anything else."""
    loaded = target.load()
    is_same = target.journal_id == source.journal_id
    if loaded.snapshot is None:
        is_unfinished = is_same
        for group in loaded.groups:
            is_unfinished = is_unfinished and group.events in (b"", UNFINISHED_COPY)
        if is_unfinished:
            return False
    elif is_same:
        engine = new_engine(target, limits)
        for _ in replay(target, loaded, engine):
            pass
        if _without_positions(_capture(engine)) == _without_positions(chunks):
            return True
    raise errors.JournalError(f"{target.describe()} holds a journal already. Copy to a location that holds none.")


def _without_positions(chunks: Iterable[bytes]) -> list[Image]:
    nowhere: defaultdict[int, int] = defaultdict(int)
    return [image for chunk in chunks for image in decode_images(relocated(chunk, nowhere))]


def _capture(engine: Engine) -> Iterator[bytes]:
    capture = engine.capture()
    while (chunk := capture.chunk()) is not None:
        yield chunk


def _append(target: Journal, time_ms: int, events: bytes, rows: Rows | None = None) -> None:
    _wait_for_space(target, len(events))
    target.append(Group(time_ms, events, (), rows))
    target.sync()


def _wait_for_space(target: Journal, need_bytes: int) -> int:
    """Return the position of the next group's first record. Raise JournalError if the target stays too full."""
    until_s = time.monotonic() + _SPACE_TIMEOUT_S
    while (slot := target.next_slot(need_bytes)).free_bytes < need_bytes:
        if time.monotonic() >= until_s:
            raise errors.JournalError(f"{target.describe()} has no space for the copy")
        # The next segment may still be in the making.
        time.sleep(0.01)
        target.maintain()
    return slot.position


def _copy_records(
    needed: Sequence[NeededRecord], source: Journal, target: Journal, time_ms: int, progress: Progress | None
) -> dict[int, int]:
    """Return the position in the target of each record, by its position in the source."""
    total_bytes = sum(record.size for record in needed)
    done_bytes = 0
    positions: dict[int, int] = {}
    for batch in _batches(needed, min(_GROUP_BYTES, target.extent_bytes // 2)):
        # This renews leases and creates spare segments.
        source.maintain()
        target.maintain()
        positions.update(_copy_group(batch, source, target, time_ms))
        done_bytes += sum(record.size for record in batch)
        if progress is not None:
            progress(done_bytes, total_bytes)
    return positions


def _batches(needed: Sequence[NeededRecord], bytes_max: int) -> Iterator[list[NeededRecord]]:
    """Yield the records of one group each. A record that is larger than `bytes_max` has a group of its own."""
    batch: list[NeededRecord] = []
    batch_bytes = 0
    for record in needed:
        if batch and batch_bytes + record_bytes(record.size) > bytes_max:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(record)
        batch_bytes += record_bytes(record.size)
    if batch:
        yield batch


def _copy_group(batch: list[NeededRecord], source: Journal, target: Journal, time_ms: int) -> dict[int, int]:
    wanted = [RecordRef(record.position, record.topic_id, record.first_offset, record.size) for record in batch]
    position = _wait_for_space(target, sum(record_bytes(record.size) for record in batch))
    records = []
    for record, (payload, checksum) in zip(batch, source.read(wanted), strict=True):
        records.append(Record(position, record.topic_id, record.first_offset, record.count, checksum, payload))
        position = record_end(position, record.size)
    target.append(Group(time_ms, b"", records))
    target.sync()
    return {old.position: new.position for old, new in zip(batch, records, strict=True)}


def _write_snapshot(target: Journal, chunks: Sequence[bytes]) -> None:
    """Write a snapshot and wait until it is in place."""
    until_s = time.monotonic() + _SNAPSHOT_TIMEOUT_S
    attempts = 0
    while time.monotonic() < until_s:
        writer = target.begin_snapshot()
        if writer is not None:
            attempts += 1
            for chunk in chunks:
                writer.add(chunk)
            writer.finish()
        target.maintain()
        if target.replay_bytes == 0:
            return
        if attempts > _SNAPSHOT_ATTEMPTS:
            break
        time.sleep(0.01)
    raise errors.JournalError(f"{target.describe()} has no space for a snapshot")
