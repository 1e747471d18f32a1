"""How groups and records come out of PostgreSQL again, each verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import xxhash

from oncemq.journal.contract import RecordHead, RecordRef
from oncemq.journal.postgres.arrays import Int8s, unsigned
from oncemq.journal.postgres.connection import Connection
from oncemq.journal.postgres.sql import query
from oncemq.journal.postgres.writer import group_checksum
from oncemq.protocol import errors

_PAGE_GROUPS = 100
_PAGE_HEADS = 1000


class StoredGroup(msgspec.Struct, frozen=True, gc=False):
    sequence: int
    size: int
    time_ms: int
    events: bytes


def groups(connection: Connection, where: str, seed: int, sequence: int, last: int) -> Iterator[StoredGroup]:
    """Those behind a sequence, in order, up to the last one. Raises JournalCorrupt where one is missing or damaged."""
    while sequence < last:
        rows = connection.execute(query("groups"), (sequence, last, _PAGE_GROUPS), binary=True).fetchall()
        if not rows:
            raise errors.JournalCorrupt(f"{where}: group {sequence + 1} is missing, and {last} is the last one")
        for found, position, size, time_ms, checksum, events in rows:
            sequence += 1
            if found != sequence:
                raise errors.JournalCorrupt(f"{where}: group {sequence} is missing, and the next one is {found}")
            if group_checksum(seed, found, position, size, time_ms, events) != checksum:
                raise errors.JournalCorrupt(f"{where}: group {sequence} does not match its checksum")
            yield StoredGroup(found, size, time_ms, events)


def records(connection: Connection, wanted: Sequence[RecordRef]) -> list[tuple[bytes, int]]:
    """Payloads and their checksums. Raises RecordCorrupt."""
    positions = Int8s([one.position for one in wanted])
    rows = connection.execute(query("read"), (positions,), binary=True).fetchall()
    found = {row[0]: row for row in rows}
    return [_verified(one, found.get(one.position)) for one in wanted]


def _verified(wanted: RecordRef, row: tuple[Any, ...] | None) -> tuple[bytes, int]:
    if row is None or row[1] != wanted.topic_id or len(row[4]) != wanted.size:
        raise errors.RecordCorrupt(f"there is no such record at {wanted.position}")
    _, _, first_offset, checksum, payload = row
    if first_offset != wanted.first_offset and -1 not in (first_offset, wanted.first_offset):
        raise errors.RecordCorrupt(f"the record at {wanted.position} has offset {first_offset}")
    if xxhash.xxh3_64_intdigest(payload) != unsigned(checksum):
        raise errors.RecordCorrupt(f"the record at {wanted.position} does not match its checksum")
    return payload, unsigned(checksum)


def heads(connection: Connection, begin: int, end: int, bytes_max: int) -> tuple[list[RecordHead], int]:
    """The records from one position to another, and where to go on (0 = that was all)."""
    rows = connection.execute(query("scan"), (begin, end, _PAGE_HEADS)).fetchall()
    found: list[RecordHead] = []
    seen_bytes = 0
    for position, topic_id, first_offset, count, checksum, size in rows:
        if seen_bytes >= bytes_max:
            return found, position
        found.append(RecordHead(position, topic_id, first_offset, count, unsigned(checksum), size))
        seen_bytes += size
    return found, found[-1].position + 1 if len(rows) == _PAGE_HEADS else 0
