"""Reads and verifies records. One read of the file covers neighbouring records."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from oncemq.disk.contract import DiskFile
from oncemq.journal.contract import GROUP_HEADER_BYTES, RECORD_HEADER_BYTES, RecordHead, RecordRef
from oncemq.journal.files.group import MAGIC, RECORD, BadGroup, decode, stored_bytes
from oncemq.journal.files.layout import Layout, segment_path
from oncemq.journal.files.segments import Segments
from oncemq.journal.verification import record_corrupt, record_damage
from oncemq.protocol import errors

log = logging.getLogger("oncemq.journal")

#: A read that fails is repeated, since the next attempt may succeed.
READ_TRIES = 3
#: Neighbours with less than this between them are read together, up to the second limit.
GAP_BYTES_MAX = 64 * 1024
RUN_BYTES_MAX = 4 * 1024 * 1024
#: A payload of at least this size is a view of what was read: a copy would cost more.
_VIEW_BYTES_MIN = 16 * 1024


def runs(wanted: Sequence[RecordRef], segment_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first index, stop index, end position) of neighbours that one read covers."""
    first = 0
    while first < len(wanted):
        start = wanted[first].position
        end = start + RECORD_HEADER_BYTES + wanted[first].size
        segment_end = start - start % segment_bytes + segment_bytes
        stop = first + 1
        while stop < len(wanted):
            position = wanted[stop].position
            next_end = position + RECORD_HEADER_BYTES + wanted[stop].size
            if not end <= position < min(end + GAP_BYTES_MAX, segment_end) or next_end - start > RUN_BYTES_MAX:
                break
            end = next_end
            stop += 1
        yield first, stop, end
        first = stop


def _read(file: DiskFile, number: int, at: int, size: int) -> bytes:
    """Read from segment `number`, and repeat a read that fails. Raise OSError if the last attempt fails too."""
    failure: OSError | None = None
    for attempts_left in reversed(range(READ_TRIES)):
        try:
            data = file.read(at, size)
            break
        except OSError as error:
            if not attempts_left:
                raise
            failure = error
    if failure is not None:
        log.warning("%s at byte %d was read only when the read was repeated: %s", segment_path(number), at, failure)
    return data


def read_records(
    segments: Segments, layout: Layout, wanted: Sequence[RecordRef]
) -> list[tuple[bytes | memoryview, int]]:
    """Return payloads and checksums. Raise RecordCorrupt."""
    result: list[tuple[bytes | memoryview, int]] = []
    for first, stop, end in runs(wanted, layout.segment_bytes):
        start = wanted[first].position
        number, at = divmod(start, layout.segment_bytes)
        try:
            data = _read(segments.file(number), number, at, end - start)
        except FileNotFoundError:
            raise record_corrupt(segment_path(number), wanted[first], "the file of its segment is missing") from None
        except OSError as error:
            raise errors.RecordCorrupt(f"{segment_path(number)} at byte {at} can't be read: {error}.") from error
        result += [_verified(data, one.position - start, one, layout) for one in wanted[first:stop]]
    return result


def _verified(data: bytes, at: int, wanted: RecordRef, layout: Layout) -> tuple[bytes | memoryview, int]:
    start = at + RECORD_HEADER_BYTES
    source = data if wanted.size < _VIEW_BYTES_MIN else memoryview(data)
    payload, checksum = source[start : start + wanted.size], 0
    if len(data) < start + wanted.size:
        damage = "the segment ends before its end"
    else:
        position, topic_id, first_offset, checksum, size, _, _ = RECORD.unpack_from(data, at)
        if position != wanted.position or size != wanted.size:
            damage = f"there is a record {position} of topic {topic_id} with {size} bytes"
        else:
            damage = record_damage(wanted, topic_id, first_offset, checksum, payload)
    if damage:
        number, byte = divmod(wanted.position, layout.segment_bytes)
        raise record_corrupt(f"{segment_path(number)} at byte {byte}", wanted, damage)
    return payload, checksum


def scan_segment(
    file: DiskFile, layout: Layout, number: int, at: int, end: int, bytes_max: int
) -> tuple[list[RecordHead], int]:
    """Return the headers of the records from byte `at` on, and the byte to continue at (0 = end).

    A damaged group is skipped: its records stay where they are, and a read of them says what is wrong.
    """
    heads: list[RecordHead] = []
    base = number * layout.segment_bytes
    stop = at + bytes_max
    while at < min(stop, end):
        header = _read(file, number, at, GROUP_HEADER_BYTES)
        size = stored_bytes(header, layout) if header[:8] == MAGIC else 0
        if not 0 < size <= end - at:
            at += layout.block_bytes
            continue
        try:
            group = decode(_read(file, number, at, size), 0, base + at, layout, check_payloads=False)
        except BadGroup:
            at += layout.block_bytes
            continue
        heads += group.records
        at += group.size
    return heads, at if at < end else 0
