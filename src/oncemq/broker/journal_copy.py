"""`journal copy`: a stopped broker's journal, moved from one place to another, of whatever kind both are.

The state of the source is captured as a snapshot; every record that it needs is appended to the target; the snapshot,
with the records' new positions, makes the target whole. Until then its first group says that it is an unfinished copy,
and recovery refuses it; copying again goes on behind what is there.

Both have the same id, so that the broker, its topics and its sessions are the same for every client; and the target's
term is not below the source's, so that clients listen to it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from oncemq.broker.recovery import UNFINISHED_COPY, new_engine, recover
from oncemq.broker.sql_projection import everything
from oncemq.engine.engine import Engine
from oncemq.engine.snapshot.relocation import NeededRecord, needed_records, relocated
from oncemq.journal.contract import Group, Journal, Record, RecordRef, record_bytes, record_end
from oncemq.journal.rows import Rows
from oncemq.protocol import errors
from oncemq.protocol.limits import Limits

#: Bytes done, and bytes in all.
Progress = Callable[[int, int], None]

_GROUP_BYTES = 1024 * 1024
#: As in ordinary work: should the disk damage one, the other leads to the same state.
_SNAPSHOTS = 2
_SNAPSHOT_TRIES = 5
_SNAPSHOT_S = 600
_ROOM_S = 10
#: A copy has nobody who waits for its answers, and may be held up by the other side.
_LEASE_MS = 30_000


class Copied(msgspec.Struct, frozen=True):
    source: str
    target: str
    topics: int
    subscriptions: int
    sessions: int
    records: int
    record_bytes: int


def copy(source: str, target: str, progress: Progress | None = None) -> Copied:
    """From one place to another: `file:DIR`, a folder, or `postgresql://…`. Raises JournalError where there is no
    source, or where the target holds something."""
    limits = Limits()
    origin = open_source(source)
    try:
        engine = recover(origin, limits, Counter())
        copied = open_target(target, origin)
        try:
            return copy_journal(engine, origin, copied, limits, progress)
        finally:
            copied.close()
    finally:
        origin.close()


def _is_postgres(place: str) -> bool:
    return place.startswith(("postgresql://", "postgres://"))


def open_source(place: str) -> Journal:
    if _is_postgres(place):
        from oncemq.journal.postgres.standby import open_postgres

        return open_postgres(place, lease_ms=_LEASE_MS, may_make=False)
    from oncemq.journal.files.journal import open_files
    from oncemq.journal.files.layout import META

    folder = Path(place.removeprefix("file:"))
    if not (folder / META).exists():
        raise errors.JournalError(f"there is no journal in {folder}")
    return open_files(folder)


def open_target(place: str, source: Journal) -> Journal:
    """Made as a twin of the source, where there is none."""
    if _is_postgres(place):
        from oncemq.journal.postgres.standby import open_postgres

        return open_postgres(place, lease_ms=_LEASE_MS, extent_bytes=source.extent_bytes, journal_id=source.journal_id)
    from oncemq.disk.os_disk import OsDisk
    from oncemq.journal.files.journal import FileJournal
    from oncemq.journal.worker import ThreadWorker

    disk = OsDisk(place.removeprefix("file:"))
    return FileJournal(disk, ThreadWorker(), segment_bytes=source.extent_bytes, journal_id=source.journal_id)


def copy_journal(
    engine: Engine, source: Journal, target: Journal, limits: Limits, progress: Progress | None = None
) -> Copied:
    """`engine`: the source's, recovered. The target is whole when this returns."""
    _check_empty(source, target)
    target.raise_term(source.term)
    state = engine.state
    _append(target, state.time_ms, UNFINISHED_COPY)
    chunks = list(_capture(engine))
    needed = sorted(needed_records(chunks), key=lambda record: record.position)
    places = _copy_records(needed, source, target, state.time_ms, progress)
    moved = [relocated(chunk, places) for chunk in chunks]
    # What is promised to whoever recovers from it: that it can be.
    twin = new_engine(target, limits)
    twin.restore(moved)
    source.ensure_not_fenced()
    if target.tables_wanted:
        _append(target, state.time_ms, b"", everything(twin.state))
    for _ in range(_SNAPSHOTS):
        _write_snapshot(target, moved)
    return Copied(
        source.describe(),
        target.describe(),
        len(state.topics),
        state.subscriptions,
        len(state.sessions),
        len(needed),
        sum(record.size for record in needed),
    )


def _check_empty(source: Journal, target: Journal) -> None:
    loaded = target.load()
    is_empty = loaded.snapshot is None
    for group in loaded.groups:
        is_empty = is_empty and group.events in (b"", UNFINISHED_COPY)
    if not is_empty or target.journal_id != source.journal_id:
        raise errors.JournalError(
            f"{target.describe()} holds a journal already. A copy goes to a place where there is none."
        )


def _capture(engine: Engine) -> Iterator[bytes]:
    capture = engine.capture()
    while (chunk := capture.chunk()) is not None:
        yield chunk


def _append(target: Journal, time_ms: int, events: bytes, rows: Rows | None = None) -> None:
    _place(target, len(events))
    target.append(Group(time_ms, events, (), rows))
    target.sync()


def _place(target: Journal, need_bytes: int) -> int:
    until_s = time.monotonic() + _ROOM_S
    while (place := target.next_slot(need_bytes)).room_bytes < need_bytes:
        if time.monotonic() >= until_s:
            raise errors.JournalError(f"{target.describe()} has no room for the copy")
        # The next segment is being made, perhaps.
        time.sleep(0.01)
        target.maintain()
    return place.position


def _copy_records(
    needed: Iterable[NeededRecord], source: Journal, target: Journal, time_ms: int, progress: Progress | None
) -> dict[int, int]:
    """Where each record lies in the target."""
    needed = list(needed)
    total_bytes = sum(record.size for record in needed)
    done_bytes = 0
    places: dict[int, int] = {}
    for part in _parts(needed, min(_GROUP_BYTES, target.extent_bytes // 2)):
        # Leases are kept, spare segments made.
        source.maintain()
        target.maintain()
        places.update(_copy_group(part, source, target, time_ms))
        done_bytes += sum(record.size for record in part)
        if progress is not None:
            progress(done_bytes, total_bytes)
    return places


def _parts(needed: Iterable[NeededRecord], bytes_max: int) -> Iterator[list[NeededRecord]]:
    """What goes into one group each; a record that is larger has one for itself."""
    part: list[NeededRecord] = []
    part_bytes = 0
    for record in needed:
        if part and part_bytes + record_bytes(record.size) > bytes_max:
            yield part
            part, part_bytes = [], 0
        part.append(record)
        part_bytes += record_bytes(record.size)
    if part:
        yield part


def _copy_group(part: list[NeededRecord], source: Journal, target: Journal, time_ms: int) -> dict[int, int]:
    wanted = [RecordRef(record.position, record.topic_id, record.first_offset, record.size) for record in part]
    position = _place(target, sum(record_bytes(record.size) for record in part))
    records = []
    for record, (payload, checksum) in zip(part, source.read(wanted), strict=True):
        records.append(Record(position, record.topic_id, record.first_offset, record.count, checksum, payload))
        position = record_end(position, record.size)
    target.append(Group(time_ms, b"", records))
    target.sync()
    return {old.position: new.position for old, new in zip(part, records, strict=True)}


def _write_snapshot(target: Journal, chunks: Iterable[bytes]) -> None:
    """In place when it returns: then it counts."""
    chunks = list(chunks)
    until_s = time.monotonic() + _SNAPSHOT_S
    tries = 0
    while time.monotonic() < until_s:
        writer = target.begin_snapshot()
        if writer is not None:
            tries += 1
            for chunk in chunks:
                writer.add(chunk)
            writer.finish()
        target.maintain()
        if target.replay_bytes == 0:
            return
        if tries > _SNAPSHOT_TRIES:
            break
        time.sleep(0.01)
    raise errors.JournalError(f"{target.describe()} has no room for a snapshot")
