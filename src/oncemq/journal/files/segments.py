"""The segment files: which there are, which is written, which wait as spares.

A segment's life, all within one folder, so that one sync of the folder covers every name before it:

    spare-7.making  →  spare-7  →  000000000012  →  spare-7  →  …
      zero-filled      waits        holds groups    recycled

A spare gets its number in five steps: rename, sync of the folder, head written, sync of the file, a note that it was
begun (segment_marker.py). Only then are groups written. Losing power before the head is synced leaves a file that has a
number and has no head of that number and no group: recovery makes it a spare again. A segment that becomes a spare
needs no sync: if the name comes back, so does the content, since nothing is written to it before its next name is
durable.

Two spares are the reserve: ordinary writing does not begin a segment unless two remain after it. So a full
disk still takes acks and moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oncemq.disk.contract import Disk, DiskFile
from oncemq.journal.files.allocation import Allocation, zero_fill
from oncemq.journal.files.layout import SEGMENTS, Layout, encode_segment_head, segment_path
from oncemq.journal.files.segment_marker import SegmentMarker
from oncemq.journal.worker import Worker

RESERVE_SPARES = 2
#: The reserve, and one that ordinary writing may take.
SPARES_WANTED = RESERVE_SPARES + 1
#: What recycling keeps at the most; the rest is given back to the disk.
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
        self.begun = SegmentMarker(disk, layout)
        #: Paths of segments that wait.
        self.spares: list[str] = []
        #: Segments that hold groups, the active one included, in order.
        self.numbers: list[int] = []
        self.active = 0

    # Finding out what there is.

    def find(self) -> None:
        """Take stock. What was being made when the last process ended is removed."""
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
        """The first segments of a new journal, the reserve included."""
        while len(self.spares) < SPARES_WANTED + 1:
            path = self._spare_path()
            for _ in zero_fill(self._disk, path, self._layout.segment_bytes):
                pass
            self.spares.append(path)
        self.begin(1, 1)
        self.begun.make(1)

    # Files.

    def file(self, number: int) -> DiskFile:
        """Open, the least recently used being closed. Raises FileNotFoundError."""
        file = self._files.pop(number, None)
        if file is None:
            file = self._disk.open(segment_path(number))
            if len(self._files) >= OPEN_FILES_MAX:
                self._forget(next(held for held in self._files if held != self.active))
        self._files[number] = file
        return file

    def _forget(self, number: int) -> None:
        file = self._files.pop(number, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for number in list(self._files):
            self._forget(number)

    # Beginning and recycling.

    def begin(self, number: int, first_sequence: int) -> None:
        """A spare becomes segment `number`, which is written from now on."""
        self._disk.rename(self.spares.pop(), segment_path(number))
        self._disk.sync_folder(SEGMENTS, "segment name")
        self.write_head(number, first_sequence, "segment head")
        self.begun.note(number)
        self.numbers.append(number)
        self.active = number

    def write_head(self, number: int, first_sequence: int, label: str) -> None:
        file = self.file(number)
        file.write(0, [encode_segment_head(self._layout, number, first_sequence)])
        file.sync(label)

    def recycle(self, numbers: Iterable[int]) -> None:
        gone = set(numbers)
        for number in sorted(gone):
            self._forget(number)
            path = self._spare_path()
            self._disk.rename(segment_path(number), path)
            self.spares.append(path)
        self.numbers = [number for number in self.numbers if number not in gone]
        if len(self.spares) > SPARES_MAX:
            surplus, self.spares = self.spares[SPARES_MAX:], self.spares[:SPARES_MAX]
            self._worker.start(_remove(self._disk, surplus), "remove surplus segments")

    def unbegin(self, numbers: Iterable[int]) -> None:
        """Segments that got their number and nothing else."""
        for number in numbers:
            is_whole = self.file(number).size() == self._layout.segment_bytes
            self._forget(number)
            self.numbers.remove(number)
            if is_whole:
                self.spares.append(self._spare_path())
                self._disk.rename(segment_path(number), self.spares[-1])
            else:
                self._disk.remove(segment_path(number))

    def _spare_path(self) -> str:
        self._spare_number += 1
        return f"{SEGMENTS}/spare-{self._spare_number:06d}"

    # Spares.

    def maintain(self) -> None:
        self._allocation.tick()
        self._take_spare()
        self._want_spare()

    def hurry(self) -> None:
        """Wait for an ordinary spare, as long as the disk is not full: writing was faster than filling."""
        self._take_spare()
        self._want_spare()
        while len(self.spares) < SPARES_WANTED and self._allocation.is_running:
            self._take_spare(wait=True)
            self._want_spare()

    def _take_spare(self, wait: bool = False) -> None:
        path = self._allocation.take(wait)
        if path is not None:
            self.spares.append(path)

    def _want_spare(self) -> None:
        if len(self.spares) < SPARES_WANTED and not self._allocation.is_running and not self._allocation.is_paused:
            self._allocation.start(self._spare_path(), self._layout.segment_bytes)


def _remove(disk: Disk, paths: list[str]) -> Iterator[None]:
    for path in paths:
        disk.remove(path)
        yield
