"""Checks that every journal makes, in memory, in files and in PostgreSQL."""

from __future__ import annotations

import xxhash

from oncemq.journal.contract import RecordRef
from oncemq.protocol import errors


def record_damage(
    wanted: RecordRef, topic_id: int, first_offset: int, checksum: int, payload: bytes | memoryview
) -> str:
    """Return why the record that lies at the position is not the wanted one, or is damaged; "" if all is well."""
    if topic_id != wanted.topic_id or len(payload) != wanted.size:
        return f"there is a record of topic {topic_id} with {len(payload)} bytes"
    if first_offset != wanted.first_offset and -1 not in (first_offset, wanted.first_offset):
        return f"there is a record with offset {first_offset}"
    if xxhash.xxh3_64_intdigest(payload) != checksum:
        return "its payload does not match its checksum"
    return ""


def record_corrupt(location: str, wanted: RecordRef, damage: str) -> errors.RecordCorrupt:
    return errors.RecordCorrupt(
        f"{location}: the record of topic {wanted.topic_id}, offset {wanted.first_offset}, is damaged: {damage}."
    )


def unfinished_copy(location: str) -> errors.JournalError:
    return errors.JournalError(
        f"{location} is a copy that was not finished. Run `oncemq journal copy` again, with the same source and target."
    )
