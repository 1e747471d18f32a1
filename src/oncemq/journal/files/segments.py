"""The segment files: which exist, which one is written, and which are spares.

The life of a segment. All names are in one folder, so that one sync of the folder covers every earlier rename:

    spare-7.making  →  spare-7  →  000000000012  →  spare-7  →  …
      zero-filled      unused       holds groups    recycled

A spare gets its number in five steps: it is renamed, the folder is synced, the header is written, the file is synced,
and the segment marker is written (segment_marker.py). Only then are groups written. A power failure before the header
is synced leaves a file that has a number, but neither a header with that number nor a group: recovery turns it into a
spare again. A segment that becomes a spare needs no sync: if its old name comes back after a crash, so does its old
content, because nothing is written to it before its next name is durable.

Two spares are the reserve: ordinary writes do not begin a segment unless two spares remain. So a full disk still
accepts acks and moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oncemq.disk.contract import Disk, DiskFile
from oncemq.journal.files.allocation import Allocation, zero_fill
from oncemq.journal.files.layout import SEGMENTS, Layout, encode_segment_head, segment_path
from oncemq.journal.files.segment_marker import SegmentMarker
from oncemq.journal.worker import Worker

RESERVE_SPARES = 2
#: The reserve, and one for ordinary writes.
SPARES_WANTED = RESERVE_SPARES + 1
#: Maximum number of recycled spares; the rest is deleted.
SPARES_MAX = SPARES_WANTED + 4
OPEN_FILES_MAX = 64


class Segments:
    def __init__(self, disk: Disk, worker: Worker, layout: Layout) -> None:
        self._disk = disk
        self._worker = worker
        self._layout = layout
        self._files: dict[int, DiskFile] = {}
        self._allocation = Allocation(disk, worker)
        self._spare_number = 0
        self.marker = SegmentMarker(disk, layout)
        #: Paths.
        self.spares: list[str] = []
        #: Segments that hold groups, the active one included, in order.
        self.numbers: list[int] = []
        self.active = 0

    def find(self) -> None:
        """Find all segments and spares. Files that were not complete when the last process ended are deleted."""
        for name in self._disk.list(SEGMENTS):
            path = f"{SEGMENTS}/{name}"
            if name.isdigit():
                self.numbers.append(int(name))
            elif name.startswith("spare-") and name[6:].isdigit():
                self._spare_number = max(self._spare_number, int(name[6:]))
                self._find_spare(path)
            elif name.endswith(".making"):
                self._disk.remove(path)

    def _find_spare(self, path: str) -> None:
        file = self._disk.open(path)
        is_whole = file.size() == self._layout.segment_bytes
        file.close()
        if is_whole and len(self.spares) < SPARES_MAX:
            self.spares.append(path)
        else:
            self._disk.remove(path)

    def create(self) -> None:
        """Create the first segment of a new journal, and its spares."""
        while len(self.spares) < SPARES_WANTED + 1:
            path = self._spare_path()
            for _ in zero_fill(self._disk, path, self._layout.segment_bytes):
                pass
            self.spares.append(path)
        self.begin(1, 1)
        self.marker.create(1)

    # Files.

    def file(self, number: int) -> DiskFile:
        """Return the open file of a segment. The least recently used file may be closed. Raise FileNotFoundError."""
        file = self._files.pop(number, None)
        if file is None:
            file = self._disk.open(segment_path(number))
            if len(self._files) >= OPEN_FILES_MAX:
                self._close(next(other for other in self._files if other != self.active))
        self._files[number] = file
        return file

    def _close(self, number: int) -> None:
        file = self._files.pop(number, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for number in list(self._files):
            self._close(number)

    # Begin and recycle.

    def begin(self, number: int, first_sequence: int) -> None:
        """Turn a spare into segment `number`, which becomes the active one."""
        self._disk.rename(self.spares.pop(), segment_path(number))
        self._disk.sync_folder(SEGMENTS, "segment name")
        self.write_head(number, first_sequence, "segment head")
        self.marker.write(number)
        self.numbers.append(number)
        self.active = number

    def write_head(self, number: int, first_sequence: int, label: str) -> None:
        file = self.file(number)
        file.write(0, [encode_segment_head(self._layout, number, first_sequence)])
        file.sync(label)

    def recycle(self, numbers: Iterable[int]) -> None:
        recycled = set(numbers)
        for number in sorted(recycled):
            self._recycle(number)
        self.numbers = [number for number in self.numbers if number not in recycled]
        if len(self.spares) > SPARES_MAX:
            surplus, self.spares = self.spares[SPARES_MAX:], self.spares[:SPARES_MAX]
            self._worker.start(_delete(self._disk, surplus), "delete surplus segments", gently=True)

    def _recycle(self, number: int) -> None:
        """Turn a segment into a spare. A damaged file may have another size, or be missing."""
        try:
            is_whole = self.file(number).size() == self._layout.segment_bytes
        except FileNotFoundError:
            return
        self._close(number)
        if is_whole:
            path = self._spare_path()
            self._disk.rename(segment_path(number), path)
            self.spares.append(path)
        else:
            self._disk.remove(segment_path(number))

    def undo_begin(self, numbers: Iterable[int]) -> None:
        """Turn segments that have a number, but neither a header nor a group, into spares again."""
        for number in numbers:
            self._recycle(number)
            self.numbers.remove(number)

    def _spare_path(self) -> str:
        self._spare_number += 1
        return f"{SEGMENTS}/spare-{self._spare_number:06d}"

    # Spares.

    def maintain(self) -> None:
        self._allocation.tick()
        self._take_spare()
        self._allocate_spare()

    def hurry(self) -> None:
        """The active segment is filling up: a spare for ordinary writes should be there when it is full."""
        if len(self.spares) < SPARES_WANTED:
            self._worker.hurry()

    def wait_for_spare(self) -> None:
        """Wait until there is a spare for ordinary writes, unless the disk is full. It is missing only if segments are
        written faster than they are zero-filled."""
        self._take_spare()
        self._allocate_spare()
        while len(self.spares) < SPARES_WANTED and self._allocation.is_running:
            self._take_spare(wait=True)
            self._allocate_spare()

    def _take_spare(self, wait: bool = False) -> None:
        path = self._allocation.take(wait)
        if path is not None:
            self.spares.append(path)

    def _allocate_spare(self) -> None:
        if len(self.spares) < SPARES_WANTED and not self._allocation.is_running and not self._allocation.is_paused:
            self._allocation.start(self._spare_path(), self._layout.segment_bytes)


def _delete(disk: Disk, paths: list[str]) -> Iterator[None]:
    for path in paths:
        disk.remove(path)
        yield
