"""Which segment was begun last, noted outside of it: so that losing its file is not taken for the journal's end.

The note is durable before the first group in the segment is answered. It is a lower bound: a journal may go on behind
it, and never ends before it. A journal without a note (an older OnceMQ made it) is as good as any, but for that.

`journal.begun` holds the note in two places, a block apart, the higher one counts. The place that does not count is
written over, in a file that does not grow: torn, it leaves the note that was there before; and a full disk does not
keep a segment of the reserve from being begun.
"""

from __future__ import annotations

from oncemq.disk.contract import Disk, write_file
from oncemq.journal.files.layout import HEAD_BYTES, MARKER, MARKER_MAGIC, Layout, decode_head, encode_marker


class SegmentMarker:
    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._layout = layout

    def read(self) -> int:
        """0 where nothing is noted."""
        return max(self._places(), default=0)

    def _places(self) -> list[int]:
        """What both places say, 0 being a damaged one; none where there is no note."""
        if not self._disk.exists(MARKER):
            return []
        file = self._disk.open(MARKER)
        heads = [decode_head(file.read(at, HEAD_BYTES), MARKER_MAGIC, MARKER) for at in (0, self._layout.block_bytes)]
        file.close()
        return [head.number if head and head.journal_id == self._layout.journal_id else 0 for head in heads]

    def note(self, number: int, may_make: bool = False) -> None:
        """Durable when this returns, but for the name of a file that had to be made."""
        places = self._places()
        if not places:
            if may_make:
                self.make(number)
            return
        at = self._layout.block_bytes if places[0] > places[1] else 0
        file = self._disk.open(MARKER)
        file.write(at, [encode_marker(self._layout, number)])
        file.sync("begun segment")
        file.close()

    def make(self, number: int) -> None:
        """Its name is not durable yet."""
        place = encode_marker(self._layout, number)
        write_file(
            self._disk, MARKER + ".making", place.ljust(self._layout.block_bytes, b"\0") + place, "begun segment"
        )
        self._disk.rename(MARKER + ".making", MARKER)
