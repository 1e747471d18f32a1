"""The codec of groups. A group is what one sync covers. This module knows nothing of files.

A group starts on a block boundary and lies within one segment. Numbers are little-endian.

    group    header 64 | record | record | … | events | zeros up to the next block

    header   byte  0  8s   "1MQGROUP"
                   8  u64  sequence: 1, 2, 3, … without gaps
                  16  u64  position of this group
                  24  u64  time, in milliseconds since 1970
                  32  u32  bytes of all records
                  36  u32  bytes of events
                  40  u32  count of records
                  44  u32  0
                  48  u64  0
                  56  u64  checksum: seeded XXH3 of the header up to here, all record headers, and the events

    record   header 48 | payload | zeros up to a multiple of 8

    header   byte  0  u64  position of this record
                   8  u64  topic id
                  16  i64  first offset, or -1
                  24  u64  checksum: XXH3 of the payload, as its producer computed it
                  32  u32  bytes of the payload
                  36  u32  count of messages
                  40  u64  0

The group's checksum covers the payloads through their checksums, so that a write does not have to hash any payload.
Position and sequence show whether a group is left over from an earlier use of a recycled segment.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
import xxhash

from oncemq.journal.contract import GROUP_HEADER_BYTES, RECORD_HEADER_BYTES, Group, RecordHead
from oncemq.journal.files.layout import Layout

MAGIC = b"1MQGROUP"

_HEAD = struct.Struct("<8sQQQIIIIQ")
_CHECKSUM = struct.Struct("<Q")
RECORD = struct.Struct("<QQqQIIQ")
_OPENING = struct.Struct("<8sQQ")
_PAD = [b"\0" * count for count in range(8)]
_ZEROS = bytes(64 * 1024)

assert RECORD.size == RECORD_HEADER_BYTES
assert _HEAD.size + _CHECKSUM.size == GROUP_HEADER_BYTES


class BadGroup(Exception):
    """The bytes at a position are not the expected group; the text says why."""


class DecodedGroup(msgspec.Struct, frozen=True, gc=False):
    position: int
    sequence: int
    time_ms: int
    events: bytes
    records: list[RecordHead]
    #: Up to the start of the next group.
    size: int

    @property
    def is_empty(self) -> bool:
        return not self.events and not self.records


def encode(layout: Layout, sequence: int, position: int, group: Group) -> tuple[list[bytes | memoryview], int]:
    """Return the parts to write and their total number of bytes, which is a multiple of the block size."""
    heads: list[bytes] = [b""]
    parts: list[bytes | memoryview] = [b""]
    at = first = position + GROUP_HEADER_BYTES
    pack = RECORD.pack
    for record in group.records:
        payload = record.payload
        size = len(payload)
        assert record.position == at, f"a record for position {record.position} would be written at {at}"
        head = pack(at, record.topic_id, record.first_offset, record.checksum, size, record.count, 0)
        heads.append(head)
        parts.append(head)
        parts.append(payload)
        pad = -size % 8
        if pad:
            parts.append(_PAD[pad])
        at += RECORD_HEADER_BYTES + size + pad
    events = group.events
    opening = _HEAD.pack(MAGIC, sequence, position, group.time_ms, at - first, len(events), len(heads) - 1, 0, 0)
    heads[0] = opening
    heads.append(events)
    parts[0] = opening + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(b"".join(heads), layout.seed))
    parts.append(events)
    used = at + len(events) - position
    pad = -used % layout.block_bytes
    parts.append(_ZEROS[:pad])
    return parts, used + pad


def decode(data: bytes, at: int, position: int, layout: Layout, check_payloads: bool = True) -> DecodedGroup:
    """Return the group at `data[at:]`. Raise BadGroup unless it is an undamaged group of this position."""
    if len(data) - at < GROUP_HEADER_BYTES or data[at : at + 8] != MAGIC:
        raise BadGroup("there is no group header")
    (_, sequence, own, time_ms, records_bytes, events_bytes, count, _, _) = _HEAD.unpack_from(data, at)
    if own != position:
        raise BadGroup(f"its header has the position {own}")
    records_at = at + GROUP_HEADER_BYTES
    events_at = records_at + records_bytes
    end = events_at + events_bytes
    if end > len(data):
        raise BadGroup("the group is longer than its segment")
    records = _records(data, records_at, events_at, position - at, count)
    events = data[events_at:end]
    shift = at - position
    hashed = [data[at : at + _HEAD.size]]
    hashed += [data[one.position + shift : one.position + shift + RECORD_HEADER_BYTES] for one in records]
    hashed.append(events)
    if _CHECKSUM.unpack_from(data, at + _HEAD.size)[0] != xxhash.xxh3_64_intdigest(b"".join(hashed), layout.seed):
        raise BadGroup("the group's checksum is wrong")
    if check_payloads:
        _check_payloads(data, position - at, records)
    return DecodedGroup(position, sequence, time_ms, events, records, layout.padded(end - at))


def _records(data: bytes, at: int, end: int, base: int, count: int) -> list[RecordHead]:
    """Return the headers of the records from `at` to `end`. `data[0]` has the position `base`."""
    records = []
    unpack = RECORD.unpack_from
    for _ in range(count):
        if end - at < RECORD_HEADER_BYTES:
            raise BadGroup("the records do not match the group's header")
        own, topic_id, first_offset, checksum, size, messages, _zero = unpack(data, at)
        if own != base + at:
            raise BadGroup(f"the record at {base + at} has the position {own}")
        records.append(RecordHead(own, topic_id, first_offset, messages, checksum, size))
        at += RECORD_HEADER_BYTES + size + -size % 8
    if at != end:
        raise BadGroup("the records do not match the group's header")
    return records


def _check_payloads(data: bytes, base: int, records: list[RecordHead]) -> None:
    view = memoryview(data)
    for record in records:
        start = record.position - base + RECORD_HEADER_BYTES
        if xxhash.xxh3_64_intdigest(view[start : start + record.size]) != record.checksum:
            raise BadGroup(f"the payload of the record at {record.position} does not match its checksum")


def boundaries(data: bytes, at: int, block_bytes: int) -> Iterator[int]:
    """Yield the block boundaries from `at` on that have the magic number of a group."""
    found = data.find(MAGIC, at)
    while found >= 0:
        if found % block_bytes == 0:
            yield found
        found = data.find(MAGIC, found + 1)


def find_good(data: bytes, at: int, base: int, sequence_min: int, layout: Layout) -> DecodedGroup | None:
    """Return the first good group at or after `at` with at least this sequence. `data[0]` has the position `base`."""
    for found in boundaries(data, at, layout.block_bytes):
        if _OPENING.unpack_from(data, found)[2] != base + found:
            continue
        try:
            group = decode(data, found, base + found, layout)
        except BadGroup:
            continue
        if group.sequence >= sequence_min:
            return group
    return None


def stored_bytes(opening: bytes, layout: Layout) -> int:
    """Return the size of a group according to its header, up to the next block boundary."""
    if len(opening) < GROUP_HEADER_BYTES:
        return 0
    _, _, _, _, records_bytes, events_bytes, *_ = _HEAD.unpack_from(opening)
    return layout.padded(GROUP_HEADER_BYTES + int(records_bytes) + int(events_bytes))


def torn_bytes(data: bytes, at: int, position: int, sequence: int, layout: Layout) -> int:
    """Return the size of the unfinished group at `at`, or 0 if the write of none was begun there.

    A recycled segment holds arbitrary old bytes. A group whose write was begun has at least two of magic number,
    sequence and position.
    """
    if len(data) - at < GROUP_HEADER_BYTES:
        return 0
    magic, own_sequence, own_position = _OPENING.unpack_from(data, at)
    if (magic == MAGIC) + (own_sequence == sequence) + (own_position == position) < 2:
        return 0
    return min(stored_bytes(data[at : at + GROUP_HEADER_BYTES], layout), len(data) - at)
