"""The part of `journal check` that needs no broker: verifies all files of a journal and reports all damage. It changes
nothing.

Whether a broker starts with the journal, and whether it can read every message, is checked with the code of the broker
(broker/offline/check.py).

The caller holds the lock of the journal, because the files of a running broker change all the time. If the lock file
can't be opened, it continues with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from oncemq.disk.contract import Disk
from oncemq.journal.contract import SNAPSHOTS_KEPT
from oncemq.journal.files.group import DecodedGroup
from oncemq.journal.files.layout import LOCK, SEGMENTS, SNAPSHOTS, Layout, segment_path
from oncemq.journal.files.scan import (
    HEAD_DAMAGED,
    TOO_SHORT,
    Problem,
    Progress,
    Segment,
    describe_gap,
    describe_unfinished,
    open_layout,
    read_segments,
)
from oncemq.journal.files.segment_marker import SegmentMarker
from oncemq.journal.files.snapshot_codec import SnapshotHead, SnapshotInvalid, load_snapshot
from oncemq.protocol import errors

#: How many of the last groups the report lists.
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
    #: 0 if there is no good group.
    first_sequence: int = 0
    last_sequence: int = 0
    #: Good groups, the oldest first.
    last_groups: list[GroupLocation] = msgspec.field(default_factory=list)
    #: Sequences of the valid snapshots.
    snapshots: list[int] = msgspec.field(default_factory=list)
    problems: list[Problem] = msgspec.field(default_factory=list)
    #: Findings that are harmless.
    notes: list[str] = msgspec.field(default_factory=list)
    #: Why a broker refuses to start with it; empty if a broker starts.
    refusal: str = ""
    #: What subscriptions, retention or stages still need, and no broker can read.
    lost_batches: int = 0
    lost_messages: int = 0

    @property
    def is_good(self) -> bool:
        return not self.problems and not self.refusal


def check(disk: Disk, progress: Progress | None = None) -> Report:
    """Verify all files of a journal whose lock the caller holds. Raise JournalError or JournalVersion."""
    report = Report(disk.describe())
    layout = open_layout(disk)
    heads = check_snapshots(disk, layout, report)
    _check_segments(disk, layout, report, heads[-1] if heads else None, progress)
    return report


@contextmanager
def locked_if_possible(disk: Disk, warn: Callable[[str], object]) -> Iterator[None]:
    """Hold the lock. Raise JournalLocked if a broker holds it. If the lock can't be opened, for lack of permission,
    warn and continue without it."""
    try:
        lock = disk.lock(LOCK)
    except errors.JournalLocked:
        raise
    except errors.JournalError as error:
        warn(f"{error}; so it is not known whether a broker is running there")
        yield
        return
    try:
        yield
    finally:
        lock.close()


def check_snapshots(disk: Disk, layout: Layout, report: Report) -> list[SnapshotHead]:
    """Return the headers of the valid snapshots, the oldest first."""
    heads: list[SnapshotHead] = []
    for name in reversed(disk.list(SNAPSHOTS)):
        if not name.isdigit():
            continue
        path = f"{SNAPSHOTS}/{name}"
        try:
            heads.insert(0, load_snapshot(disk, layout, path, with_chunks=False)[0])
            report.snapshots.insert(0, int(name))
        except (SnapshotInvalid, OSError) as reason:
            if len(heads) < SNAPSHOTS_KEPT:
                what = "can't be read" if isinstance(reason, OSError) else "is damaged"
                report.problems.append(Problem(path, 0, 0, f"the snapshot {what}: {reason}"))
            else:
                # Its file was already in use for the next snapshot, and a power failure has brought its name back.
                report.notes.append(f"{path} is not needed; the next start deletes it")
    return heads


class _Sequence:
    """Checks that group follows group, from segment to segment."""

    def __init__(self, layout: Layout, report: Report, replay_from: int) -> None:
        self._layout = layout
        self._report = report
        #: The segment where replay starts: from there on none may be missing.
        self._needed_from = replay_from // layout.segment_bytes
        self._previous: Segment | None = None
        self._at = layout.block_bytes
        #: The last segment that has a header or a group, and where its groups end.
        self._begun: Segment | None = None
        self._begun_at = 0
        self._last_sequence = 0

    def add(self, segment: Segment) -> None:
        self._check_follows(segment)
        expected = segment.first_sequence or 0
        at = self._layout.block_bytes
        for scanned in segment.ranges():
            group = scanned.group
            if group is None:
                self._report_problem(segment, scanned.at, f"a damaged group with good ones after it: {scanned.reason}")
                expected = 0
                continue
            if expected and group.sequence != expected:
                what = f"group {expected} is missing; group {group.sequence} is in its place"
                self._report_problem(segment, scanned.at, what)
            if segment.first_sequence is None and scanned.at == self._layout.block_bytes:
                self._report_problem(segment, 0, HEAD_DAMAGED)
            self._count(group)
            expected = group.sequence + 1
            at = scanned.end
        self._previous, self._at = segment, at
        if segment.first_sequence is not None or at > self._layout.block_bytes:
            self._begun, self._begun_at = segment, at
            if segment.file_bytes < len(segment.data):
                self._report_problem(segment, segment.file_bytes, TOO_SHORT)

    def _report_problem(self, segment: Segment, at: int, what: str) -> None:
        self._report.problems.append(segment.problem(at, what))

    def _count(self, group: DecodedGroup) -> None:
        report = self._report
        report.groups += 1
        report.records += len(group.records)
        report.payload_bytes += sum(record.size for record in group.records)
        report.first_sequence = report.first_sequence or group.sequence
        report.last_sequence = self._last_sequence = group.sequence
        report.last_groups.append(GroupLocation(group.position, group.sequence, group.time_ms, len(group.records)))
        del report.last_groups[:-_LAST_GROUPS]

    def _check_follows(self, segment: Segment) -> None:
        previous, first = self._previous, segment.first_sequence
        if previous is not None and previous is not self._begun:
            # Only the last segment may have a number and neither a header nor a group.
            self._report_problem(previous, 0, HEAD_DAMAGED)
        if previous is None:
            if self._needed_from and segment.number > self._needed_from:
                self._report_problem(segment, 0, f"segment {self._needed_from} is missing")
        elif segment.number != previous.number + 1:
            if segment.number > self._needed_from:
                self._report_problem(segment, 0, f"segment {segment.number - 1} is missing")
            if previous.unfinished_bytes(self._at, self._last_sequence + 1):
                # A segment is begun only when the last group of the one before is complete.
                self._report_problem(previous, self._at, f"group {self._last_sequence + 1} is damaged")
        elif first is not None and self._last_sequence and first != self._last_sequence + 1:
            self._report_problem(previous, self._at, describe_gap(self._last_sequence + 1, segment.number))

    def end(self, marked: int) -> None:
        """Check the end. `marked` is the segment that the marker says was begun last."""
        segment, begun = self._previous, self._begun
        if segment is None:
            return
        if begun is not None and begun.number < marked:
            position = begun.base + self._begun_at
            what = f"the segment was begun, but is missing or damaged; the journal ends at position {position}"
            self._report.problems.append(Problem(segment_path(marked), 0, position, what))
        elif segment.first_sequence is None and self._at == self._layout.block_bytes:
            self._report.notes.append(f"{segment.path} was never begun; it becomes a spare at the next start")
        elif segment.unfinished_bytes(self._at, self._last_sequence + 1):
            unfinished = describe_unfinished(segment.number, self._at, self._last_sequence + 1)
            self._report.notes.append(f"{unfinished}; the next start leaves it out and keeps its bytes")


def _check_segments(
    disk: Disk, layout: Layout, report: Report, newest: SnapshotHead | None, progress: Progress | None
) -> None:
    sequence = _Sequence(layout, report, newest.position if newest else layout.segment_bytes)
    for segment in read_segments(disk, layout, progress, report.problems.append):
        report.segments += 1
        sequence.add(segment)
    sequence.end(SegmentMarker(disk, layout).read())
    if not report.segments:
        report.problems.append(Problem(SEGMENTS, 0, 0, "there is no segment"))
