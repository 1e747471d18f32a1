"""Going over every segment of a journal that may be damaged: what is good, and where it is not.

Unlike recovery it does not stop at the first damage, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from oncemq.disk.contract import Disk
from oncemq.journal.files.group import BadGroup, DecodedGroup, decode, find_good, torn_bytes
from oncemq.journal.files.layout import META, Layout, decode_segment_head, segment_numbers, segment_path
from oncemq.journal.files.meta import read_layout
from oncemq.protocol import errors

#: Called with (segments done, segments in all).
Progress = Callable[[int, int], None]


class Problem(msgspec.Struct, frozen=True):
    file: str
    byte: int
    #: For `journal cut`; 0 where it does not lie in a segment.
    position: int
    what: str


class ScannedRange(msgspec.Struct, frozen=True):
    """From `at` on: a good group, or (with `reason`) something bad, up to `end`."""

    at: int
    end: int
    group: DecodedGroup | None
    reason: str = ""


class Segment(msgspec.Struct, frozen=True):
    number: int
    #: As long as it was made, with zeros where the file is shorter.
    data: bytes
    file_bytes: int
    #: None: damaged, or never begun.
    first_sequence: int | None

    @property
    def path(self) -> str:
        return segment_path(self.number)

    def problem(self, at: int, what: str) -> Problem:
        return Problem(self.path, at, self.number * len(self.data) + at, what)


def open_layout(disk: Disk) -> Layout:
    """Raises JournalError where there is no journal."""
    if not disk.exists(META):
        raise errors.JournalError(f"{disk.describe()} holds no journal: {META} is missing")
    return read_layout(disk)


def segments(disk: Disk, layout: Layout, progress: Progress | None = None) -> Iterator[Segment]:
    numbers = segment_numbers(disk)
    for done, number in enumerate(numbers):
        if progress is not None:
            progress(done, len(numbers))
        file = disk.open(segment_path(number))
        data = file.read(0, layout.segment_bytes)
        file.close()
        head = decode_segment_head(data, layout, number)
        whole = data.ljust(layout.segment_bytes, b"\0")
        yield Segment(number, whole, len(data), head.first_sequence if head else None)
    if progress is not None:
        progress(len(numbers), len(numbers))


def scan_ranges(segment: Segment, layout: Layout) -> Iterator[ScannedRange]:
    """Good groups, and what lies damaged before a good one. What lies behind the last good one is not told."""
    base = segment.number * layout.segment_bytes
    at = layout.block_bytes
    while at < layout.segment_bytes:
        try:
            group = decode(segment.data, at, base + at, layout)
            yield ScannedRange(at, at + group.size, group)
            at += group.size
        except BadGroup as reason:
            later = find_good(segment.data, at + layout.block_bytes, base, 0, layout)
            if later is None:
                return
            yield ScannedRange(at, later.position - base, None, str(reason))
            at = later.position - base


def unfinished_bytes(segment: Segment, at: int, sequence: int, layout: Layout) -> int:
    """Of a group that was begun behind the last good one."""
    return torn_bytes(segment.data, at, segment.number * layout.segment_bytes + at, sequence, layout)
