"""Reading whole segments of a journal that may be damaged: which groups are good, and where the damage is.

Recovery, `journal check`, `journal export` and `journal cut` use it. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from oncemq.disk.contract import Disk, DiskFile
from oncemq.journal.files.group import BadGroup, DecodedGroup, decode, find_good, torn_bytes
from oncemq.journal.files.layout import COPYING, META, Layout, decode_segment_head, segment_numbers, segment_path
from oncemq.journal.files.meta import read_layout
from oncemq.journal.verification import unfinished_copy
from oncemq.protocol import errors

#: Called with the number of segments done, and of all segments.
Progress = Callable[[int, int], None]

HEAD_DAMAGED = "the segment's header is damaged"
TOO_SHORT = "the segment is shorter than when it was created"


class Problem(msgspec.Struct, frozen=True):
    file: str
    byte: int
    #: For `journal cut`; 0 if it does not lie in a segment.
    position: int
    what: str


class ScannedRange(msgspec.Struct, frozen=True):
    """The bytes from `at` to `end`: a good group, or damage for the given `reason`."""

    at: int
    end: int
    group: DecodedGroup | None
    reason: str = ""


class Segment(msgspec.Struct, frozen=True):
    """A segment in memory."""

    layout: Layout
    number: int
    #: As long as the segment was created, with zeros at the end if the file is shorter.
    data: bytes
    file_bytes: int
    #: None if the header is damaged, or was never written.
    first_sequence: int | None

    @property
    def path(self) -> str:
        return segment_path(self.number)

    @property
    def base(self) -> int:
        """The position of its first byte."""
        return self.number * self.layout.segment_bytes

    def problem(self, at: int, what: str) -> Problem:
        return Problem(self.path, at, self.base + at, what)

    def find_good(self, at: int, sequence_min: int = 0) -> DecodedGroup | None:
        """Return the first good group at or after `at` with at least this sequence."""
        return find_good(self.data, at, self.base, sequence_min, self.layout)

    def unfinished_bytes(self, at: int, sequence: int) -> int:
        """Return the size of an unfinished group at `at`; 0 if there is none."""
        return torn_bytes(self.data, at, self.base + at, sequence, self.layout)

    def ranges(self) -> Iterator[ScannedRange]:
        """Yield good groups, and damage that has a good group after it. Bytes after the last good group are not
        included."""
        at = self.layout.block_bytes
        while at < self.layout.segment_bytes:
            try:
                group = decode(self.data, at, self.base + at, self.layout)
                yield ScannedRange(at, at + group.size, group)
                at += group.size
            except BadGroup as reason:
                later = self.find_good(at + self.layout.block_bytes)
                if later is None:
                    return
                yield ScannedRange(at, later.position - self.base, None, str(reason))
                at = later.position - self.base


def read_segment(file: DiskFile, layout: Layout, number: int) -> Segment:
    data = file.read(0, layout.segment_bytes)
    head = decode_segment_head(data, layout, number)
    whole = data.ljust(layout.segment_bytes, b"\0")
    return Segment(layout, number, whole, len(data), head.first_sequence if head else None)


def load_segment(disk: Disk, layout: Layout, number: int) -> Segment:
    file = disk.open(segment_path(number))
    try:
        return read_segment(file, layout, number)
    finally:
        file.close()


def open_layout(disk: Disk) -> Layout:
    """Raise JournalError if there is no journal."""
    if not disk.exists(META) and disk.exists(COPYING):
        raise unfinished_copy(disk.describe())
    if not disk.exists(META):
        raise errors.JournalError(f"{disk.describe()} holds no journal: {META} is missing")
    return read_layout(disk)


def read_segments(disk: Disk, layout: Layout, progress: Progress | None = None) -> Iterator[Segment]:
    numbers = segment_numbers(disk)
    for done, number in enumerate(numbers):
        if progress is not None:
            progress(done, len(numbers))
        yield load_segment(disk, layout, number)
    if progress is not None:
        progress(len(numbers), len(numbers))


def describe_gap(sequence: int, number: int) -> str:
    return f"group {sequence} is damaged or missing, but segment {number} follows"


def describe_unfinished(number: int, at: int, sequence: int) -> str:
    return f"{segment_path(number)} at byte {at}: the write of group {sequence} was not finished"
