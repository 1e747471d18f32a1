"""Reads groups and records from PostgreSQL. Each is verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from oncemq.journal.contract import RecordHead, RecordRef
from oncemq.journal.postgres.arrays import Int8s, unsigned
from oncemq.journal.postgres.connection import Connection, corrupt
from oncemq.journal.postgres.sql import query
from oncemq.journal.postgres.writer import group_checksum
from oncemq.journal.verification import record_corrupt, record_damage

_PAGE_GROUPS = 100
_PAGE_HEADS = 1000


class StoredGroup(msgspec.Struct, frozen=True, gc=False):
    sequence: int
    size: int
    time_ms: int
    events: bytes


def read_groups(connection: Connection, location: str, seed: int, sequence: int, last: int) -> Iterator[StoredGroup]:
    """Yield the groups after `sequence`, in order, up to the last one. Raise JournalCorrupt if one is missing or
    damaged."""
    while sequence < last:
        rows = connection.execute(query("groups"), (sequence, last, _PAGE_GROUPS), binary=True).fetchall()
        if not rows:
            raise corrupt(location, f"group {sequence + 1} is missing, and {last} is the last one")
        for found, position, size, time_ms, checksum, events in rows:
            sequence += 1
            if found != sequence:
                raise corrupt(location, f"group {sequence} is missing, and the next one is {found}")
            if group_checksum(seed, found, position, size, time_ms, events) != checksum:
                raise corrupt(location, f"group {sequence} does not match its checksum")
            yield StoredGroup(found, size, time_ms, events)


def read_records(connection: Connection, location: str, wanted: Sequence[RecordRef]) -> list[tuple[bytes, int]]:
    """Return payloads and checksums. Raise RecordCorrupt."""
    positions = Int8s([one.position for one in wanted])
    rows = connection.execute(query("read"), (positions,), binary=True).fetchall()
    found = {row[0]: row for row in rows}
    result = []
    for one in wanted:
        row = found.get(one.position)
        if row is None:
            raise record_corrupt(f"{location} at position {one.position}", one, "there is no record")
        _, topic_id, first_offset, checksum, payload = row
        damage = record_damage(one, topic_id, first_offset, unsigned(checksum), payload)
        if damage:
            raise record_corrupt(f"{location} at position {one.position}", one, damage)
        result.append((payload, unsigned(checksum)))
    return result


def scan_heads(connection: Connection, begin: int, end: int, bytes_max: int) -> tuple[list[RecordHead], int]:
    """Return records between two positions, and the position to continue at (0 = end)."""
    rows = connection.execute(query("scan"), (begin, end, _PAGE_HEADS)).fetchall()
    found: list[RecordHead] = []
    seen_bytes = 0
    for position, topic_id, first_offset, count, checksum, size in rows:
        if seen_bytes >= bytes_max:
            return found, position
        found.append(RecordHead(position, topic_id, first_offset, count, unsigned(checksum), size))
        seen_bytes += size
    return found, found[-1].position + 1 if len(rows) == _PAGE_HEADS else 0
