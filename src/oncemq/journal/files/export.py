"""`journal export`: writes everything that can be read from a journal, also from one that recovery refuses.

It changes nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec
import xxhash

from oncemq.disk.contract import Disk
from oncemq.journal.contract import GROUP_HEADER_BYTES, RECORD_HEADER_BYTES, record_end
from oncemq.journal.files.check import locked_if_possible
from oncemq.journal.files.group import RECORD
from oncemq.journal.files.scan import Progress, Segment, open_layout, read_segments


class Output(Protocol):
    def write(self, data: bytes, /) -> object: ...


class Exported(msgspec.Struct):
    groups: int = 0
    records: int = 0
    #: Records of damaged groups that could be read nevertheless.
    saved_records: int = 0


def export(
    disk: Disk,
    output: Output,
    decode_events: Callable[[bytes], object] | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], object] = str,
) -> Exported:
    """Write JSON lines: a `group` with its events, and each `record` with its payload. Raise JournalError or
    JournalLocked."""
    layout = open_layout(disk)
    with locked_if_possible(disk, warn):
        exported = Exported()
        for segment in read_segments(disk, layout, progress, lambda problem: warn(f"{problem.file}: {problem.what}")):
            for line in _lines(segment, decode_events, exported):
                output.write(msgspec.json.encode(line) + b"\n")
        return exported


def _lines(
    segment: Segment, decode_events: Callable[[bytes], object] | None, exported: Exported
) -> Iterator[dict[str, object]]:
    end = segment.layout.block_bytes
    for scanned in segment.ranges():
        end = scanned.end
        group = scanned.group
        if group is None:
            yield from _saved_lines(segment, scanned.at, exported)
            continue
        exported.groups += 1
        exported.records += len(group.records)
        yield {
            "kind": "group",
            "position": group.position,
            "sequence": group.sequence,
            "time_ms": group.time_ms,
            "events": decode_events(group.events) if decode_events else _text(group.events),
        }
        yield from _record_lines(segment, scanned.at, True)
    yield from _saved_lines(segment, end, exported)


def _saved_lines(segment: Segment, at: int, exported: Exported) -> Iterator[dict[str, object]]:
    for line in _record_lines(segment, at, False):
        exported.saved_records += 1
        yield line


def _record_lines(segment: Segment, at: int, in_good_group: bool) -> Iterator[dict[str, object]]:
    """Yield the records of the group at `at`, up to the first one with a wrong position or a damaged payload."""
    at += GROUP_HEADER_BYTES
    while at + RECORD_HEADER_BYTES <= len(segment.data):
        position, topic_id, first_offset, checksum, size, count, _ = RECORD.unpack_from(segment.data, at)
        payload = segment.data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + size]
        if position != segment.base + at or xxhash.xxh3_64_intdigest(payload) != checksum:
            return
        yield {
            "kind": "record",
            "position": position,
            "topic_id": topic_id,
            "first_offset": first_offset,
            "count": count,
            "payload": _text(payload),
            "in_good_group": in_good_group,
        }
        at = record_end(at, size)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
