"""`journal check`, `export` and `cut`, as functions over a disk: for journals that recovery refuses.

`check` and `export` change nothing. `cut` gives up a group and all behind it, and keeps the bytes. All three take
the journal's lock: a broker that runs would be seen in the middle of its work. Where the lock's file can't be
opened, the first two go on with a warning.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec
import xxhash

from oncemq.disk.contract import Disk
from oncemq.journal.contract import RECORD_HEADER_BYTES
from oncemq.journal.files.group import RECORD, DecodedGroup
from oncemq.journal.files.layout import (
    CUT,
    GROUP_HEADER_BYTES,
    LAST,
    LOCK,
    MARKER,
    SEGMENTS,
    SNAPSHOTS,
    Layout,
    segment_path,
)
from oncemq.journal.files.recovery import save_cut
from oncemq.journal.files.scan import Problem, Progress, Segment, open_layout, scan_ranges, segments, unfinished_bytes
from oncemq.journal.files.segment_marker import SegmentMarker
from oncemq.journal.files.snapshot_codec import SnapshotHead, SnapshotInvalid, read_snapshot
from oncemq.protocol import errors

#: Of the last groups, so many are named.
_LAST_GROUPS = 10


class GroupLocation(msgspec.Struct, frozen=True):
    """Where a group lies, for `journal cut`."""

    position: int
    sequence: int
    time_ms: int
    records: int


class Report(msgspec.Struct):
    journal: str
    segments: int = 0
    groups: int = 0
    records: int = 0
    payload_bytes: int = 0
    #: 0 where there is no good group.
    first_sequence: int = 0
    last_sequence: int = 0
    #: Good ones, the oldest first.
    last_groups: list[GroupLocation] = msgspec.field(default_factory=list)
    #: Valid ones.
    snapshots: list[int] = msgspec.field(default_factory=list)
    problems: list[Problem] = msgspec.field(default_factory=list)
    #: Harmless, and worth knowing.
    notes: list[str] = msgspec.field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.problems


def check(disk: Disk, progress: Progress | None = None) -> Report:
    """Verify everything. Raises JournalError, JournalLocked, JournalVersion."""
    report = Report(disk.describe())
    layout = open_layout(disk)
    with _locked_if_possible(disk, report.notes.append):
        heads = _check_snapshots(disk, layout, report)
        _check_segments(disk, layout, report, heads[-1] if heads else None, progress)
        return report


@contextmanager
def _locked_if_possible(disk: Disk, warn: Callable[[str], object]) -> Iterator[None]:
    """Raises JournalLocked. A lock that nobody can take here, for want of permission, keeps nobody from looking."""
    try:
        lock = disk.lock(LOCK)
    except errors.JournalLocked:
        raise
    except errors.JournalError as error:
        warn(f"{error}; whether a broker is running there is not known")
        yield
        return
    try:
        yield
    finally:
        lock.close()


def _check_snapshots(disk: Disk, layout: Layout, report: Report) -> list[SnapshotHead]:
    heads = []
    for name in disk.list(SNAPSHOTS):
        if not name.isdigit():
            continue
        path = f"{SNAPSHOTS}/{name}"
        file = disk.open(path)
        try:
            heads.append(read_snapshot(file, layout, int(name)))
            report.snapshots.append(int(name))
        except SnapshotInvalid as reason:
            report.problems.append(Problem(path, 0, 0, f"the snapshot is damaged: {reason}"))
        finally:
            file.close()
    return heads


class _Chain:
    """Whether group follows group, from segment to segment."""

    def __init__(self, layout: Layout, report: Report, replay_from: int) -> None:
        self._layout = layout
        self._report = report
        #: The segment where replay starts: from there on none may be missing.
        self._needed_from = replay_from // layout.segment_bytes
        self._previous: Segment | None = None
        self._at = layout.block_bytes
        #: The last segment that has a head or a group, and where its groups end.
        self._begun: Segment | None = None
        self._begun_at = 0
        self.sequence = 0

    def take(self, segment: Segment) -> None:
        self._join(segment)
        expected = segment.first_sequence or 0
        at = self._layout.block_bytes
        for scanned in scan_ranges(segment, self._layout):
            group = scanned.group
            if group is None:
                what = f"a damaged group with good ones behind it: {scanned.reason}"
                self._report.problems.append(segment.problem(scanned.at, what))
                expected = 0
                continue
            if expected and group.sequence != expected:
                what = f"group {expected} is missing; group {group.sequence} lies here"
                self._report.problems.append(segment.problem(scanned.at, what))
            if segment.first_sequence is None and scanned.at == self._layout.block_bytes:
                self._report.problems.append(segment.problem(0, "the segment's head is damaged"))
            self._count(group)
            expected = group.sequence + 1
            at = scanned.end
        self._previous, self._at = segment, at
        if segment.first_sequence is not None or at > self._layout.block_bytes:
            self._begun, self._begun_at = segment, at
            if segment.file_bytes < len(segment.data):
                what = "the segment is shorter than it was made"
                self._report.problems.append(segment.problem(segment.file_bytes, what))

    def _count(self, group: DecodedGroup) -> None:
        report = self._report
        report.groups += 1
        report.records += len(group.records)
        report.payload_bytes += sum(record.size for record in group.records)
        report.first_sequence = report.first_sequence or group.sequence
        report.last_sequence = self.sequence = group.sequence
        report.last_groups.append(GroupLocation(group.position, group.sequence, group.time_ms, len(group.records)))
        del report.last_groups[:-_LAST_GROUPS]

    def _join(self, segment: Segment) -> None:
        previous, first = self._previous, segment.first_sequence
        if previous is None:
            if self._needed_from and segment.number > self._needed_from:
                self._report.problems.append(segment.problem(0, f"segment {self._needed_from} is missing"))
        elif segment.number != previous.number + 1:
            if segment.number > self._needed_from:
                self._report.problems.append(segment.problem(0, f"segment {segment.number - 1} is missing"))
        elif first is not None and self.sequence and first != self.sequence + 1:
            what = f"group {self.sequence + 1} is damaged or missing, and segment {segment.number} follows"
            self._report.problems.append(previous.problem(self._at, what))

    def end(self, noted: int) -> None:
        """`noted`: the last segment that is known to have been begun."""
        segment, begun = self._previous, self._begun
        if segment is None:
            return
        if begun is not None and begun.number < noted:
            position = begun.number * self._layout.segment_bytes + self._begun_at
            what = f"the segment was begun, and is missing or damaged; what is left ends at position {position}"
            self._report.problems.append(Problem(segment_path(noted), 0, position, what))
        elif segment.first_sequence is None and self._at == self._layout.block_bytes:
            self._report.notes.append(f"{segment.path} was never begun; it becomes a spare at the next start")
        elif unfinished_bytes(segment, self._at, self.sequence + 1, self._layout):
            self._report.notes.append(
                f"{segment.path} at byte {self._at}: group {self.sequence + 1} was not finished; "
                "the next start leaves it out and keeps its bytes"
            )


def _check_segments(
    disk: Disk, layout: Layout, report: Report, newest: SnapshotHead | None, progress: Progress | None
) -> None:
    chain = _Chain(layout, report, newest.position if newest else layout.segment_bytes)
    for segment in segments(disk, layout, progress):
        report.segments += 1
        chain.take(segment)
    chain.end(SegmentMarker(disk, layout).read())
    if not report.segments:
        report.problems.append(Problem(SEGMENTS, 0, 0, "there is no segment"))


# Export.


class Output(Protocol):
    def write(self, data: bytes, /) -> object: ...


class Exported(msgspec.Struct):
    groups: int = 0
    records: int = 0
    #: Records that a damaged group had, and that could be read all the same.
    saved_records: int = 0


def export(
    disk: Disk,
    output: Output,
    decode_events: Callable[[bytes], object] | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], object] = str,
) -> Exported:
    """Everything that can be read, as JSON lines: `group` with its events, and `record` with its payload."""
    layout = open_layout(disk)
    with _locked_if_possible(disk, warn):
        exported = Exported()
        for segment in segments(disk, layout, progress):
            for line in _lines(segment, layout, decode_events, exported):
                output.write(msgspec.json.encode(line) + b"\n")
        return exported


def _lines(
    segment: Segment, layout: Layout, decode_events: Callable[[bytes], object] | None, exported: Exported
) -> Iterator[dict[str, object]]:
    end = layout.block_bytes
    for scanned in scan_ranges(segment, layout):
        end = scanned.end
        group = scanned.group
        if group is not None:
            exported.groups += 1
            exported.records += len(group.records)
            yield {
                "kind": "group",
                "position": group.position,
                "sequence": group.sequence,
                "time_ms": group.time_ms,
                "events": decode_events(group.events) if decode_events else _text(group.events),
            }
        lines = list(_record_lines(segment, layout, scanned.at, group is not None))
        exported.saved_records += len(lines) if group is None else 0
        yield from lines
    lines = list(_record_lines(segment, layout, end, False))
    exported.saved_records += len(lines)
    yield from lines


def _record_lines(segment: Segment, layout: Layout, at: int, is_whole: bool) -> Iterator[dict[str, object]]:
    """One record after the other, as far as each says where it lies and its payload is good."""
    base = segment.number * layout.segment_bytes
    at += GROUP_HEADER_BYTES
    while at + RECORD_HEADER_BYTES <= len(segment.data):
        position, topic_id, first_offset, checksum, size, count, _ = RECORD.unpack_from(segment.data, at)
        payload = segment.data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + size]
        if position != base + at or xxhash.xxh3_64_intdigest(payload) != checksum:
            return
        yield {
            "kind": "record",
            "position": position,
            "topic_id": topic_id,
            "first_offset": first_offset,
            "count": count,
            "payload": _text(payload),
            "in_good_group": is_whole,
        }
        at += RECORD_HEADER_BYTES + size + -size % 8


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


# Cut.


class Cut(msgspec.Struct):
    """What was given up. The bytes are in the files of `saved`."""

    segments: int = 0
    groups: int = 0
    snapshots: int = 0
    saved: list[str] = msgspec.field(default_factory=list)


def cut(disk: Disk, position: int, progress: Progress | None = None) -> Cut:
    """Give up the group at `position` and everything behind it. Can be repeated if it was interrupted."""
    layout = open_layout(disk)
    lock = disk.lock(LOCK)
    try:
        number, at = divmod(position, layout.segment_bytes)
        if at == 0:
            # The end of a segment that is full to the last byte.
            number, at = number - 1, layout.segment_bytes
        if at % layout.block_bytes or at < layout.block_bytes:
            raise errors.JournalError(f"{position} is not the position of a group; `oncemq journal check` names them")
        later = [segment for segment in segments(disk, layout, progress) if segment.number >= number]
        if not later or later[0].number != number:
            raise errors.JournalError(f"there is no segment {number}, where position {position} would lie")
        report = Cut()
        _cut_snapshots(disk, layout, position, report)
        _forget_begun(disk)
        for segment in reversed(later):
            _cut_segment(disk, layout, segment, at if segment.number == number else 0, report)
        return report
    finally:
        lock.close()


def _cut_snapshots(disk: Disk, layout: Layout, position: int, report: Cut) -> None:
    """A state that holds what is given up must go too; there must be another way to begin."""
    names = [name for name in disk.list(SNAPSHOTS) if name.isdigit()]
    heads = _check_snapshots(disk, layout, Report(""))
    behind = [head for head in heads if head.position > position]
    first = min((segment.number for segment in segments(disk, layout)), default=0)
    if len(behind) == len(heads) and first != 1:
        raise errors.JournalError(
            f"position {position} lies before every snapshot: nothing could be recovered behind a cut there"
        )
    for name in names:
        if int(name) not in {head.sequence for head in behind}:
            continue
        path = f"{SNAPSHOTS}/{name}"
        file = disk.open(path)
        _save(disk, f"snapshot-{name}", file.read(0, file.size()), report)
        file.close()
        disk.remove(path)
        report.snapshots += 1
    disk.sync_folder(SNAPSHOTS, "cut snapshots")


def _forget_begun(disk: Disk) -> None:
    """What was begun behind the cut is given up; the next start makes the note anew."""
    if disk.exists(MARKER):
        disk.remove(MARKER)
        disk.sync_folder("", "cut note")


def _cut_segment(disk: Disk, layout: Layout, segment: Segment, at: int, report: Cut) -> None:
    """From the last segment to the first: an interruption leaves a journal that ends earlier, or this one."""
    _save(disk, f"segment-{segment.number:012d}-{at}", segment.data[at:].rstrip(b"\0"), report)
    report.groups += sum(scanned.group is not None and scanned.at >= at for scanned in scan_ranges(segment, layout))
    if at:
        file = disk.open(segment.path)
        file.write(at, [bytes(layout.segment_bytes - at)])
        file.sync("cut segment")
        file.close()
        if disk.exists(LAST):
            disk.remove(LAST)
            disk.sync_folder("", "cut copy")
        return
    disk.remove(segment.path)
    disk.sync_folder(SEGMENTS, "cut segments")
    report.segments += 1


def _save(disk: Disk, name: str, content: bytes, report: Cut) -> None:
    path = f"{CUT}/{name}"
    number = 1
    while disk.exists(path):
        number += 1
        path = f"{CUT}/{name}-{number}"
    save_cut(disk, path, content)
    report.saved.append(path)
