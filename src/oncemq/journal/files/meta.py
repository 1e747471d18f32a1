"""Making a journal's folder, and finding out what an existing one is.

`journal.meta` is written last: as long as it is not there, nothing was acknowledged, and what an earlier attempt
left behind is removed.

It is also what every OnceMQ reads first, and the only thing that is written anew when a journal of an older version
is opened: segments and snapshots say the version that they were begun with, whatever is appended to them.
"""

from __future__ import annotations

from oncemq.disk.contract import Disk, write_file
from oncemq.journal.files.allocation import is_full
from oncemq.journal.files.group import boundaries
from oncemq.journal.files.layout import (
    CUT,
    HEAD_BYTES,
    MARKER,
    META,
    META_MAGIC,
    SEGMENTS,
    SNAPSHOTS,
    Head,
    Layout,
    decode_head,
    encode_meta,
    make_layout,
)
from oncemq.journal.files.segments import SPARES_WANTED, Segments
from oncemq.journal.files.snapshots import Snapshots
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import errors
from oncemq.protocol.version import JOURNAL_VERSION


def read_layout(disk: Disk) -> Layout:
    """Raises JournalCorrupt, JournalVersion."""
    head = _read_head(disk)
    return make_layout(head.journal_id, head.segment_bytes, head.block_bytes)


def read_term(disk: Disk) -> int:
    """0 but for a copy, whose source had one. Raises as `read_layout`."""
    return _read_head(disk).number


def write_term(disk: Disk, layout: Layout, term: int) -> None:
    """Durable when this returns."""
    _write(disk, layout, term)
    disk.sync_folder("", "meta name")


def _read_head(disk: Disk) -> Head:
    file = disk.open(META)
    raw = file.read(0, HEAD_BYTES)
    file.close()
    head = decode_head(raw, META_MAGIC, META)
    if head is None:
        raise errors.JournalCorrupt(f"{disk.describe()}: {META} is damaged. Restore it from a copy of the folder.")
    return head


def raise_version(disk: Disk, layout: Layout) -> None:
    """Before anything of this version is written: an OnceMQ that can't read it must be refused by the version.

    A crash leaves the older file or the newer one, and both can be read. Raises JournalError when the disk is full.
    """
    head = _read_head(disk)
    if head.version < JOURNAL_VERSION:
        try:
            _write(disk, layout, head.number)
        except OSError as error:
            if not is_full(error):
                raise
            raise errors.JournalError(
                f"{disk.describe()}: the disk has no room to raise the journal's format from {head.version} to "
                f"{JOURNAL_VERSION}, which takes a few bytes. Free some space."
            ) from None
    # A process that was killed may have left the name in the page cache only.
    disk.sync_folder("", "meta name")


def create(disk: Disk, layout: Layout) -> None:
    """A new journal, durable when this returns. Raises JournalError when the disk is full."""
    for folder in (SEGMENTS, SNAPSHOTS, CUT):
        disk.make_folder(folder)
    _remove_leftovers(disk)
    try:
        _create(disk, layout)
    except OSError as error:
        if not is_full(error):
            raise
        raise errors.JournalError(
            f"{disk.describe()}: the disk has no room for a new journal, which begins with "
            f"{SPARES_WANTED + 1} segments of {layout.segment_bytes} bytes. "
            "Free some space, or make it with smaller segments."
        ) from None


def _create(disk: Disk, layout: Layout) -> None:
    segments = Segments(disk, InlineWorker(), layout)
    segments.create()
    segments.close()
    Snapshots(disk, InlineWorker(), layout, []).create()
    _write(disk, layout, 0)
    disk.sync_folder("", "meta name")


def _write(disk: Disk, layout: Layout, term: int) -> None:
    """The name is not durable yet."""
    write_file(disk, META + ".making", encode_meta(layout, term), "meta")
    disk.rename(META + ".making", META)


def _remove_leftovers(disk: Disk) -> None:
    for name in disk.list(SEGMENTS):
        path = f"{SEGMENTS}/{name}"
        file = disk.open(path)
        data = file.read(0, file.size())
        file.close()
        # A segment of an unfinished attempt was zero-filled and got a head, and nothing else.
        if next(boundaries(data, 0, 512), None) is not None:
            raise errors.JournalCorrupt(
                f"{disk.describe()}: {path} holds groups, and {META} is missing. Restore it from a copy of the folder."
            )
        disk.remove(path)
    for name in disk.list(SNAPSHOTS):
        disk.remove(f"{SNAPSHOTS}/{name}")
    for path in (META + ".making", MARKER + ".making", MARKER):
        if disk.exists(path):
            disk.remove(path)
