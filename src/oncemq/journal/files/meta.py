"""Creating the folder of a journal, and reading what an existing folder is.

`journal.meta` is written last. While it does not exist, nothing was acknowledged, and the remains of an earlier attempt
are deleted.

A copy of a journal has `journal.copying` in its place until it is finished. That file is written first, so that at no
time the folder can be taken for a journal, or for an empty folder.

It is also what every OnceMQ reads first, and the only file that is rewritten when a journal of an older version is
opened: segments and snapshots keep the version with which they were begun, whatever is appended to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oncemq.disk.contract import Disk, write_file
from oncemq.journal.files.allocation import is_full
from oncemq.journal.files.group import boundaries
from oncemq.journal.files.layout import (
    COPYING,
    CUT,
    HEAD_BYTES,
    LAST,
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


def read_layout(disk: Disk, path: str = META) -> Layout:
    """Raise JournalCorrupt or JournalVersion."""
    head = _read_head(disk, path)
    return make_layout(head.journal_id, head.segment_bytes, head.block_bytes)


def read_term(disk: Disk, path: str) -> int:
    """Return the term, which is 0 except in a copy whose source had one. Raise as `read_layout`."""
    return _read_head(disk, path).number


def write_term(disk: Disk, path: str, layout: Layout, term: int) -> None:
    """Write the term. It is durable when this returns."""
    _write(disk, path, layout, term)
    disk.sync_folder("", "meta name")


def _read_head(disk: Disk, path: str) -> Head:
    file = disk.open(path)
    raw = file.read(0, HEAD_BYTES)
    file.close()
    head = decode_head(raw, META_MAGIC, path)
    if head is None:
        raise errors.JournalCorrupt(f"{disk.describe()}: {path} is damaged. Restore it from a copy of the folder.")
    return head


def raise_version(disk: Disk, path: str, layout: Layout) -> None:
    """Write the current version to journal.meta, if it is older. This must happen before anything else of the current
    version is written, so that an OnceMQ that can't read it refuses the journal by its version.

    A crash leaves the older file or the newer one, and both can be read. Raise JournalError if the disk is full.
    """
    head = _read_head(disk, path)
    if head.version < JOURNAL_VERSION:
        try:
            _write(disk, path, layout, head.number)
        except OSError as error:
            if not is_full(error):
                raise
            raise errors.JournalError(
                f"{disk.describe()}: the disk has no space to raise the journal's format from {head.version} to "
                f"{JOURNAL_VERSION}, which needs a few bytes. Free some space."
            ) from None
    # A process that was killed may have left the name only in the page cache.
    disk.sync_folder("", "meta name")


def create(disk: Disk, layout: Layout) -> None:
    """Create a journal. It is durable when this returns. Raise JournalError if the disk is full."""
    _make_folders(disk)
    _refuse_groups(disk)
    with _needing_space(disk, layout):
        _create_files(disk, layout)
        _write(disk, META, layout, 0)
        disk.sync_folder("", "meta name")


def create_copy(disk: Disk, layout: Layout) -> None:
    """Create an empty journal that can't be used before `finish_copy`. An earlier unfinished copy is deleted. Raise as
    `create`."""
    _make_folders(disk)
    if not disk.exists(COPYING):
        _refuse_groups(disk)
    with _needing_space(disk, layout):
        _write(disk, COPYING, layout, 0)
        disk.sync_folder("", "name of an unfinished copy")
        _create_files(disk, layout)


def finish_copy(disk: Disk) -> None:
    disk.rename(COPYING, META)
    disk.sync_folder("", "meta name")


@contextmanager
def _needing_space(disk: Disk, layout: Layout) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise errors.JournalError(
            f"{disk.describe()}: the disk has no space for a new journal, which starts with "
            f"{SPARES_WANTED + 1} segments of {layout.segment_bytes} bytes. "
            "Free some space, or create it with smaller segments."
        ) from None


def _make_folders(disk: Disk) -> None:
    for folder in (SEGMENTS, SNAPSHOTS, CUT):
        disk.make_folder(folder)


def _create_files(disk: Disk, layout: Layout) -> None:
    _delete_remains(disk)
    segments = Segments(disk, InlineWorker(), layout)
    segments.create()
    segments.close()
    Snapshots(disk, InlineWorker(), layout, []).create()


def _write(disk: Disk, path: str, layout: Layout, term: int) -> None:
    """Write journal.meta. Its name is not durable before the folder is synced."""
    write_file(disk, path + ".making", encode_meta(layout, term), "meta")
    disk.rename(path + ".making", path)


def _refuse_groups(disk: Disk) -> None:
    """Raise JournalCorrupt unless the segments are those of an unfinished attempt: they have zeros, perhaps a header,
    and nothing else."""
    for name in disk.list(SEGMENTS):
        path = f"{SEGMENTS}/{name}"
        file = disk.open(path)
        data = file.read(0, file.size())
        file.close()
        if next(boundaries(data, 0, 512), None) is not None:
            raise errors.JournalCorrupt(
                f"{disk.describe()}: {path} holds groups, but {META} is missing. Restore it from a copy of the folder."
            )


def _delete_remains(disk: Disk) -> None:
    for folder in (SEGMENTS, SNAPSHOTS):
        for name in disk.list(folder):
            disk.remove(f"{folder}/{name}")
    for path in (META + ".making", MARKER + ".making", MARKER, LAST + ".making", LAST):
        if disk.exists(path):
            disk.remove(path)
