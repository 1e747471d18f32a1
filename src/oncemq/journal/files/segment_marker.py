"""The marker of the segment that was begun last. It is kept outside of the segment, so that the loss of the segment's
file is not mistaken for the end of the journal.

The marker is durable before the first group in the segment is acknowledged. It is a lower bound: a journal may continue
after that segment, but never ends before it. A journal without a marker (created by an older OnceMQ) is valid, but
lacks this protection.

`journal.begun` holds the marker twice, one block apart; the higher number counts. A write overwrites the copy with the
lower number, in a file that does not grow. A torn write therefore leaves the previous marker, and a full disk does not
prevent a segment of the reserve from being begun.
"""

from __future__ import annotations

from oncemq.disk.contract import Disk, write_file
from oncemq.journal.files.layout import HEAD_BYTES, MARKER, MARKER_MAGIC, Layout, decode_head, encode_marker


class SegmentMarker:
    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._layout = layout

    def read(self) -> int:
        """Return the number of the segment, or 0 if there is no marker."""
        return max(self._copies(), default=0)

    def _copies(self) -> list[int]:
        """Return the numbers of both copies, 0 for a damaged one. The list is empty if there is no marker."""
        if not self._disk.exists(MARKER):
            return []
        file = self._disk.open(MARKER)
        heads = [decode_head(file.read(at, HEAD_BYTES), MARKER_MAGIC, MARKER) for at in (0, self._layout.block_bytes)]
        file.close()
        return [head.number if head and head.journal_id == self._layout.journal_id else 0 for head in heads]

    def write(self, number: int, may_create: bool = False) -> None:
        """Write the marker. It is durable when this returns, except for the name of a file that had to be created."""
        copies = self._copies()
        if not copies:
            if may_create:
                self.create(number)
            return
        at = self._layout.block_bytes if copies[0] > copies[1] else 0
        file = self._disk.open(MARKER)
        file.write(at, [encode_marker(self._layout, number)])
        file.sync("begun segment")
        file.close()

    def create(self, number: int) -> None:
        """Create the marker. Its name is not durable before the folder is synced."""
        copy = encode_marker(self._layout, number)
        content = copy.ljust(self._layout.block_bytes, b"\0") + copy
        write_file(self._disk, MARKER + ".making", content, "begun segment")
        self._disk.rename(MARKER + ".making", MARKER)
