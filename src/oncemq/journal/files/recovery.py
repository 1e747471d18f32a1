"""Recovery: from files to groups, and from there to the one place where writing goes on.

At each group's place there are five possibilities:

- the group that is expected, whole: it is replayed;
- nothing, and the next segment's head says that it goes on there;
- nothing good, and a good group anywhere behind it: an acknowledged group is damaged. Refuse.
- nothing good, and nothing good behind it, but a segment behind this one was begun, as segment_marker.py has noted: it
  is missing or damaged. Refuse.
- nothing good, and nothing good behind it: the end. A group that was begun here was never acknowledged, since
  the next is not written before the last is synced; its bytes are kept in `cut/`.

Then the last group is written again and synced, before anything in it is served: after a process was killed,
and above all after a sync that failed, the page cache may hold what the disk does not. Losing power during
that may damage a group that was acknowledged long ago: so a copy is made durable first (`journal.last`).

An error while reading is never taken for the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import xxhash

from oncemq.disk.contract import Disk, write_file
from oncemq.journal.contract import ReplayedGroup
from oncemq.journal.files.allocation import is_full
from oncemq.journal.files.group import BadGroup, DecodedGroup, boundaries, decode, find_good, torn_bytes
from oncemq.journal.files.layout import CUT, LAST, MARKER, Head, Layout, decode_segment_head, segment_path
from oncemq.journal.files.segments import Segments
from oncemq.protocol import errors


class LastGroup(msgspec.Struct, frozen=True, gc=False):
    number: int
    group: DecodedGroup
    #: Holds the group's bytes, from `at` on.
    data: bytes
    at: int

    @property
    def image(self) -> bytes:
        return self.data[self.at : self.at + self.group.size]


class Recovery:
    """One pass over the groups from a position on; afterwards its fields say where writing goes on."""

    def __init__(self, disk: Disk, layout: Layout, segments: Segments, warnings: list[str]) -> None:
        self._disk = disk
        self._layout = layout
        self._segments = segments
        self._warnings = warnings
        self._copy = b""
        #: The last segment that is known to have been begun.
        self._begun = 0
        #: The next group's.
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
        """The first group expected; position 0 is the journal's beginning."""
        self._begun = self._segments.begun.read()
        self.sequence = sequence
        if position == 0:
            position = self._layout.segment_bytes
        self.number, self.at = divmod(position, self._layout.segment_bytes)
        held = self._segments.numbers
        if self.at == 0 and self.number - 1 in held:
            # The snapshot was taken when its segment was full to the last byte.
            self.number, self.at = self.number - 1, self._layout.segment_bytes
        elif self.at == 0:
            self.at = self._layout.block_bytes
        if self.number not in held:
            raise self._corrupt(self.number, 0, "the segment is missing")

    def groups(self) -> Iterator[ReplayedGroup]:
        self._copy = self._read_copy()
        data = self._enter(self.number)
        while True:
            for group in self._good_groups(data):
                yield ReplayedGroup(group.sequence, group.time_ms, group.events)
            if not self._next_segment_follows():
                break
            self.number, self.at = self.number + 1, self._layout.block_bytes
            data = self._enter(self.number)
        self._check_end(data)
        self._cut_torn(data)
        self._secure()

    def _enter(self, number: int) -> bytes:
        """All of a segment, whose head must be right once it was noted as begun, or has groups: before that, recovery
        itself may have lost power while it wrote the head again."""
        data = self._segments.file(number).read(0, self._layout.segment_bytes)
        if decode_segment_head(data, self._layout, number) is None:
            was_begun = number <= self._begun or self.at > self._layout.block_bytes
            if was_begun or find_good(data, 0, number * self._layout.segment_bytes, 0, self._layout):
                raise self._corrupt(number, 0, "the segment's head is damaged")
        if len(data) != self._layout.segment_bytes:
            raise self._corrupt(number, len(data), "the segment is shorter than it was made")
        return data

    def _good_groups(self, data: bytes) -> Iterator[DecodedGroup]:
        base = self.number * self._layout.segment_bytes
        while True:
            try:
                group = decode(data, self.at, base + self.at, self._layout)
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
        """None where the segment was not begun: the sync of its head covers its size too."""
        file = self._segments.file(number)
        if file.size() != self._layout.segment_bytes:
            return None
        return decode_segment_head(file.read(0, self._layout.block_bytes), self._layout, number)

    def _next_segment_follows(self) -> bool:
        if self.number + 1 not in self._segments.numbers:
            return False
        head = self._head_of(self.number + 1)
        return head is not None and head.first_sequence == self.sequence

    # The end.

    def _check_end(self, data: bytes) -> None:
        """Refuse unless nothing good lies behind; segments that were never begun become spares again."""
        base = self.number * self._layout.segment_bytes
        self._refuse_later(find_good(data, self.at, base, self.sequence, self._layout))
        unused = []
        for number in self._segments.numbers:
            if number <= self.number:
                continue
            if self._head_of(number) is not None:
                raise self._corrupt(
                    self.number, self.at, f"group {self.sequence} is damaged or missing, and segment {number} follows"
                )
            data = self._segments.file(number).read(0, self._layout.segment_bytes)
            base = number * self._layout.segment_bytes
            self._refuse_later(find_good(data, 0, base, self.sequence, self._layout))
            unused.append(number)
        self._refuse_lost()
        self._segments.unbegin(unused)

    def _refuse_lost(self) -> None:
        if self._begun > self.number:
            raise self._corrupt(
                self.number,
                self.at,
                f"the journal ends here, and segment {self._begun} was begun: "
                f"{segment_path(self._begun)} is missing or damaged. Restore it, if there is a copy of it",
            )

    def _refuse_later(self, later: DecodedGroup | None) -> None:
        if later is not None:
            number, at = divmod(later.position, self._layout.segment_bytes)
            raise self._corrupt(
                self.number,
                self.at,
                f"group {self.sequence} is damaged, and a good one (group {later.sequence}) "
                f"lies behind it in {segment_path(number)} at byte {at}",
            )

    def _corrupt(self, number: int, at: int, what: str) -> errors.JournalCorrupt:
        return errors.JournalCorrupt(
            f"{self._disk.describe()}: {segment_path(number)} at byte {at} "
            f"(position {number * self._layout.segment_bytes + at}): {what}. {errors.JournalCorrupt.advice}"
        )

    def _cut_torn(self, data: bytes) -> None:
        size = torn_bytes(data, self.at, self.position, self.sequence, self._layout)
        if not size:
            return
        torn = data[self.at : self.at + size]
        path = f"{CUT}/{self.position:020d}-{xxhash.xxh3_64_hexdigest(torn)}"
        where = f"{segment_path(self.number)} at byte {self.at}: group {self.sequence} was not finished"
        try:
            save_cut(self._disk, path, torn)
        except OSError as error:
            if not is_full(error):
                raise
            self._warnings.append(f"{where}; it is left out, and the disk is too full to keep its bytes")
        else:
            self._warnings.append(f"{where}; it is left out, and its bytes are kept in {path}")

    # The last group, once more.

    def _secure(self) -> None:
        last = self.last
        # A segment begins only when the group before it is synced: that one is left alone. Writing it again could
        # damage it, and the segment behind it would then make the damage look like that of an acknowledged group.
        if last is not None and last.number == self.number:
            image = last.image
            file = self._segments.file(last.number)
            if last.group.is_empty or self._save_copy(image):
                file.write(last.group.position % self._layout.segment_bytes, [image])
            file.sync("last group again")
        if self.at == self._layout.block_bytes and self._begun < self.number:
            # A head without groups: it too may be in the page cache only. One that was noted was synced before.
            self._segments.write_head(self.number, self.sequence, "segment head again")
        self._segments.active = self.number
        self._note_begun()
        if self._disk.exists(LAST):
            self._disk.remove(LAST)

    def _note_begun(self) -> None:
        """Once more too: the note may be in the page cache only."""
        try:
            self._segments.begun.note(self.number, may_make=True)
        except OSError as error:
            if not is_full(error):
                raise
            self._warnings.append(
                f"the disk is too full for {MARKER}: until a start that finds space for it, a loss of the newest "
                "segment would not be noticed"
            )

    def _save_copy(self, image: bytes) -> bool:
        """False: there is no room for it anywhere, so the group had better not be touched."""
        try:
            write_file(self._disk, LAST + ".making", image, "copy of the last group")
        except OSError as error:
            if not is_full(error):
                raise
            return self._save_copy_behind(image)
        self._disk.rename(LAST + ".making", LAST)
        self._disk.sync_folder("", "name of the last group's copy")
        return True

    def _save_copy_behind(self, image: bytes) -> bool:
        """The disk is full, but the segment itself mostly has room at its end. What lies there says another
        position than its own, so nothing takes it for a group of that place."""
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
        """A copy of the very group that is expected here and damaged, if there is one."""
        behind = [(data, at) for at in boundaries(data, self.at, self._layout.block_bytes)]
        for source, at in [(self._copy, 0), *behind]:
            try:
                group = decode(source, at, self.position, self._layout)
            except BadGroup:
                continue
            if group.sequence == self.sequence and at + group.size <= len(source):
                return LastGroup(self.number, group, source, at)
        return None


def save_cut(disk: Disk, path: str, content: bytes) -> None:
    """Durable before the place that it comes from is written again."""
    write_file(disk, path, content, "cut bytes")
    disk.sync_folder(CUT, "cut name")
