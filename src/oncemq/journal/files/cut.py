"""`journal cut`: deletes a group and everything after it, so that recovery accepts the journal. It keeps the bytes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from oncemq.disk.contract import Disk
from oncemq.journal.files.check import Report, check_snapshots
from oncemq.journal.files.layout import CUT, LAST, MARKER, SEGMENTS, SNAPSHOTS, Layout, segment_numbers
from oncemq.journal.files.recovery import save_cut
from oncemq.journal.files.scan import Progress, Segment, load_segment, open_layout
from oncemq.protocol import errors

_Save = Callable[[Disk, str, bytes, "Cut"], None]


class Cut(msgspec.Struct):
    """What was deleted. The bytes are in the files of `saved`."""

    segments: int = 0
    groups: int = 0
    snapshots: int = 0
    saved: list[str] = msgspec.field(default_factory=list)


def cut(disk: Disk, position: int, progress: Progress | None = None, *, keeps_bytes: bool = True) -> Cut:
    """Delete the group at `position` and everything after it, in a journal whose lock the caller holds. It can be
    repeated if it was interrupted. `keeps_bytes` False is for a trial on a view of the disk. Raise JournalError.

    Whether a broker can work with what is left, the caller finds out (broker/offline/cut.py)."""
    layout = open_layout(disk)
    number, at = divmod(position, layout.segment_bytes)
    if at == 0:
        # The end of a segment that is completely full.
        number, at = number - 1, layout.segment_bytes
    if at % layout.block_bytes or at < layout.block_bytes:
        raise errors.JournalError(
            f"{position} is not the position of a group; `oncemq journal check` prints the positions of groups"
        )
    numbers = segment_numbers(disk)
    if number not in numbers:
        raise errors.JournalError(f"segment {number}, to which position {position} belongs, does not exist")
    report = Cut()
    save = _save if keeps_bytes else _do_not_save
    _cut_snapshots(disk, layout, position, report, save)
    _delete_marker(disk)
    later = [one for one in reversed(numbers) if one >= number]
    for done, one in enumerate(later):
        if progress is not None:
            progress(done, len(later))
        _cut_segment(disk, load_segment(disk, layout, one), at if one == number else 0, report, save)
    if progress is not None:
        progress(len(later), len(later))
    return report


def _cut_snapshots(disk: Disk, layout: Layout, position: int, report: Cut, save: _Save) -> None:
    """Delete the snapshots that hold the effect of deleted groups."""
    heads = check_snapshots(disk, layout, Report(""))
    later = {head.sequence for head in heads if head.position > position}
    for name in disk.list(SNAPSHOTS):
        if not name.isdigit() or int(name) not in later:
            continue
        path = f"{SNAPSHOTS}/{name}"
        file = disk.open(path)
        save(disk, f"snapshot-{name}", file.read(0, file.size()), report)
        file.close()
        disk.remove(path)
        report.snapshots += 1
    disk.sync_folder(SNAPSHOTS, "cut snapshots")


def _delete_marker(disk: Disk) -> None:
    """Delete the segment marker, since the marked segment may be deleted. The next start creates it again."""
    if disk.exists(MARKER):
        disk.remove(MARKER)
        disk.sync_folder("", "cut note")


def _cut_segment(disk: Disk, segment: Segment, at: int, report: Cut, save: _Save) -> None:
    """Cut a segment at `at`, or delete it if that is 0. Segments are cut from the last to the first, so that an
    interruption leaves a journal that ends earlier than before, but has no new gap."""
    save(disk, f"segment-{segment.number:012d}-{at}", segment.data[at:].rstrip(b"\0"), report)
    report.groups += sum(scanned.group is not None and scanned.at >= at for scanned in segment.ranges())
    if at:
        file = disk.open(segment.path)
        file.write(at, [bytes(segment.layout.segment_bytes - at)])
        file.sync("cut segment")
        file.close()
        if disk.exists(LAST):
            disk.remove(LAST)
            disk.sync_folder("", "cut copy")
        return
    disk.remove(segment.path)
    disk.sync_folder(SEGMENTS, "cut segments")
    report.segments += 1


def _save(disk: Disk, name: str, content: bytes, report: Cut) -> None:
    path = f"{CUT}/{name}"
    number = 1
    while disk.exists(path):
        number += 1
        path = f"{CUT}/{name}-{number}"
    save_cut(disk, path, content)
    report.saved.append(path)


def _do_not_save(disk: Disk, name: str, content: bytes, report: Cut) -> None:
    pass
