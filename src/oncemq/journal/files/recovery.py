"""Recovery: reads all groups after a snapshot, and finds the position where writing continues.

There are five possibilities at the position of each group:

- The expected group is there and undamaged. It is replayed.
- There is no group, and the header of the next segment says that the journal continues there.
- There is no good group, but there is one anywhere after it. An acknowledged group is damaged: recovery refuses.
- There is no good group, and none after it, but according to the segment marker a later segment was begun
  (segment_marker.py). That segment is missing or damaged: recovery refuses.
- There is no good group, and none after it. This is the end. If the write of a group was begun here, the group was
  never acknowledged, because the next group is not written before the last one is synced. Its bytes are kept in
  `cut/`.

Then the last group is written again and synced before anything in it is served. After the process was killed, and
especially after a failed sync, the page cache may hold data that the disk does not. A power failure during this write
may damage a group that was acknowledged long ago, so a copy of it is made durable first (`journal.last`).

A read error is never taken for the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import xxhash

from oncemq.disk.contract import Disk, write_file
from oncemq.journal.contract import ReplayedGroup
from oncemq.journal.files.allocation import is_full
from oncemq.journal.files.group import BadGroup, DecodedGroup, boundaries, decode
from oncemq.journal.files.layout import CUT, LAST, MARKER, Head, Layout, decode_segment_head, segment_path
from oncemq.journal.files.scan import (
    HEAD_DAMAGED,
    TOO_SHORT,
    Segment,
    describe_gap,
    describe_unfinished,
    read_segment,
)
from oncemq.journal.files.segments import Segments
from oncemq.protocol import errors


class LastGroup(msgspec.Struct, frozen=True, gc=False):
    """The last good group, and the data that holds its bytes from `at` on."""

    number: int
    group: DecodedGroup
    data: bytes
    at: int

    @property
    def image(self) -> bytes:
        return self.data[self.at : self.at + self.group.size]


class Recovery:
    """One pass over the groups from a position on. Afterwards its attributes say where writing continues."""

    def __init__(self, disk: Disk, layout: Layout, segments: Segments, warnings: list[str]) -> None:
        self._disk = disk
        self._layout = layout
        self._segments = segments
        self._warnings = warnings
        self._copy = b""
        #: The last segment that was begun, according to the marker.
        self._marked = 0
        #: Of the next group.
        self.sequence = 1
        self.number = 0
        self.at = 0
        self.time_ms = 0
        self.replayed_bytes = 0
        self.last: LastGroup | None = None

    @property
    def position(self) -> int:
        return self.number * self._layout.segment_bytes + self.at

    def start(self, sequence: int, position: int) -> None:
        """Set the sequence and position of the first group; position 0 is the beginning of the journal."""
        self._marked = self._segments.marker.read()
        self.sequence = sequence
        if position == 0:
            position = self._layout.segment_bytes
        self.number, self.at = divmod(position, self._layout.segment_bytes)
        numbers = self._segments.numbers
        if self.at == 0 and self.number - 1 in numbers:
            # The snapshot was taken when its segment was completely full.
            self.number, self.at = self.number - 1, self._layout.segment_bytes
        elif self.at == 0:
            self.at = self._layout.block_bytes
        if self.number not in numbers:
            raise self._corrupt(self.number, 0, "the segment is missing")

    def groups(self) -> Iterator[ReplayedGroup]:
        """Yield all groups. Raise JournalCorrupt if an acknowledged group is missing or damaged."""
        self._copy = self._read_copy()
        segment = self._read_segment(self.number)
        while True:
            for group in self._good_groups(segment):
                yield ReplayedGroup(group.sequence, group.time_ms, group.events, self.position)
            if not self._next_segment_follows():
                break
            self.number, self.at = self.number + 1, self._layout.block_bytes
            segment = self._read_segment(self.number)
        self._check_end(segment)
        self._cut_unfinished(segment)
        self._write_last_again()

    def _read_segment(self, number: int) -> Segment:
        """Read a whole segment. Its header must be good once the segment was marked as begun or has groups. Before
        that, a power failure may have interrupted recovery itself while it wrote the header again."""
        segment = read_segment(self._segments.file(number), self._layout, number)
        if segment.first_sequence is None:
            was_begun = number <= self._marked or self.at > self._layout.block_bytes
            if was_begun or segment.find_good(0):
                raise self._corrupt(number, 0, HEAD_DAMAGED)
        if segment.file_bytes != self._layout.segment_bytes:
            raise self._corrupt(number, segment.file_bytes, TOO_SHORT)
        return segment

    def _good_groups(self, segment: Segment) -> Iterator[DecodedGroup]:
        data = segment.data
        while True:
            try:
                group = decode(data, self.at, segment.base + self.at, self._layout)
                last = LastGroup(self.number, group, data, self.at)
            except BadGroup:
                restored = self._restored(data)
                if restored is None:
                    return
                group, last = restored.group, restored
                file = self._segments.file(self.number)
                file.write(self.at, [last.image])
                file.sync("last group again")
            if group.sequence != self.sequence:
                return
            self.last = last
            self.sequence += 1
            self.at += group.size
            self.time_ms = group.time_ms
            self.replayed_bytes += group.size
            yield group

    def _head_of(self, number: int) -> Head | None:
        """Return None if the segment was not begun. The sync of its header covers its size too. Bytes after its end
        have no meaning."""
        file = self._segments.file(number)
        if file.size() < self._layout.segment_bytes:
            return None
        return decode_segment_head(file.read(0, self._layout.block_bytes), self._layout, number)

    def _next_segment_follows(self) -> bool:
        if self.number + 1 not in self._segments.numbers:
            return False
        head = self._head_of(self.number + 1)
        return head is not None and head.first_sequence == self.sequence

    # The end.

    def _check_end(self, segment: Segment) -> None:
        """Raise JournalCorrupt if there is a good group after the end. Segments that were never begun become spares."""
        self._refuse_later(segment.find_good(self.at, self.sequence))
        unused = []
        for number in self._segments.numbers:
            if number <= self.number:
                continue
            if self._head_of(number) is not None:
                raise self._corrupt(self.number, self.at, describe_gap(self.sequence, number))
            later = read_segment(self._segments.file(number), self._layout, number)
            self._refuse_later(later.find_good(0, self.sequence))
            unused.append(number)
        if self._marked > self.number:
            raise self._corrupt(
                self.number,
                self.at,
                f"the journal ends here, but segment {self._marked} was begun: "
                f"{segment_path(self._marked)} is missing or damaged. Restore it if you have a copy of it",
            )
        self._segments.undo_begin(unused)

    def _refuse_later(self, later: DecodedGroup | None) -> None:
        if later is not None:
            number, at = divmod(later.position, self._layout.segment_bytes)
            raise self._corrupt(
                self.number,
                self.at,
                f"group {self.sequence} is damaged, but a good one (group {later.sequence}) "
                f"follows in {segment_path(number)} at byte {at}",
            )

    def _corrupt(self, number: int, at: int, what: str) -> errors.JournalCorrupt:
        error = errors.JournalCorrupt(
            f"{self._disk.describe()}: {segment_path(number)} at byte {at} "
            f"(position {number * self._layout.segment_bytes + at}): {what}"
        )
        error.advice = errors.JournalCorrupt.folder_advice
        return error

    def _cut_unfinished(self, segment: Segment) -> None:
        size = segment.unfinished_bytes(self.at, self.sequence)
        if not size:
            return
        content = segment.data[self.at : self.at + size]
        path = f"{CUT}/{self.position:020d}-{xxhash.xxh3_64_hexdigest(content)}"
        unfinished = describe_unfinished(self.number, self.at, self.sequence)
        try:
            save_cut(self._disk, path, content)
        except OSError as error:
            if not is_full(error):
                raise
            self._warnings.append(f"{unfinished}; it is left out, and the disk is too full to keep its bytes")
        else:
            self._warnings.append(f"{unfinished}; it is left out, and its bytes are kept in {path}")

    # The last group is written again.

    def _write_last_again(self) -> None:
        last = self.last
        # A segment begins only after the group before it was synced, so that group is not written again. The write
        # could damage it, and because a segment follows, recovery would have to refuse the journal.
        if last is not None and last.number == self.number:
            image = last.image
            file = self._segments.file(last.number)
            if last.group.is_empty or self._save_copy(image):
                file.write(last.group.position % self._layout.segment_bytes, [image])
            file.sync("last group again")
        if self.at == self._layout.block_bytes and self._marked < self.number:
            # A header without groups may be only in the page cache too. That of a marked segment was synced before.
            self._segments.write_head(self.number, self.sequence, "segment head again")
        self._segments.active = self.number
        self._write_marker()
        if self._disk.exists(LAST):
            self._disk.remove(LAST)

    def _write_marker(self) -> None:
        """Write the marker again, since it may be only in the page cache."""
        try:
            self._segments.marker.write(self.number, may_create=True)
        except OSError as error:
            if not is_full(error):
                raise
            self._warnings.append(
                f"the disk is too full for {MARKER}: until a start that finds space for it, the loss of the newest "
                "segment would not be noticed"
            )

    def _save_copy(self, image: bytes) -> bool:
        """Make a copy of the last group durable. Return False if there is no space for it; then the group must not be
        overwritten."""
        try:
            write_file(self._disk, LAST + ".making", image, "copy of the last group")
        except OSError as error:
            if not is_full(error):
                raise
            return self._save_copy_in_segment(image)
        self._disk.rename(LAST + ".making", LAST)
        self._disk.sync_folder("", "name of the last group's copy")
        return True

    def _save_copy_in_segment(self, image: bytes) -> bool:
        """Copy it to the end of the segment, which usually has space, since the disk is full. The copy contains the
        original position, so it is not mistaken for a group at its own position."""
        at = self._layout.segment_bytes - len(image)
        if at < self.at:
            self._warnings.append("the disk is too full to write the last group again; it was synced once more")
            return False
        file = self._segments.file(self.number)
        file.write(at, [image])
        file.sync("copy of the last group")
        return True

    def _read_copy(self) -> bytes:
        if not self._disk.exists(LAST):
            return b""
        file = self._disk.open(LAST)
        image = file.read(0, file.size())
        file.close()
        return image

    def _restored(self, data: bytes) -> LastGroup | None:
        """Return a copy of the group that is expected here and damaged, if there is one."""
        candidates = [(data, at) for at in boundaries(data, self.at, self._layout.block_bytes)]
        for source, at in [(self._copy, 0), *candidates]:
            try:
                group = decode(source, at, self.position, self._layout)
            except BadGroup:
                continue
            if group.sequence == self.sequence and at + group.size <= len(source):
                return LastGroup(self.number, group, source, at)
        return None


def save_cut(disk: Disk, path: str, content: bytes) -> None:
    """Save bytes that are about to be overwritten. They are durable when this returns."""
    write_file(disk, path, content, "cut bytes")
    disk.sync_folder(CUT, "cut name")
