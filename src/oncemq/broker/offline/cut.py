"""`journal cut`: deletes everything from a position on, if a broker can work with what is left.

A cut brings an earlier state back. Segments may have been recycled since, because nothing in them was needed any more;
the earlier state may need them. So a cut is tried on a view of the disk first, with the recovery of a broker.
"""

from __future__ import annotations

from oncemq.broker.offline.check import Examination, examine, part_of
from oncemq.broker.recovery import new_engine, replay
from oncemq.disk.contract import Disk
from oncemq.disk.overlay import OverlayDisk
from oncemq.journal.files.check import Report, check_snapshots
from oncemq.journal.files.cut import Cut
from oncemq.journal.files.cut import cut as cut_files
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.files.layout import LOCK, segment_numbers
from oncemq.journal.files.scan import Progress, open_layout
from oncemq.journal.files.snapshot_codec import SnapshotHead, snapshot_path
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import errors
from oncemq.protocol.limits import Limits


def cut(disk: Disk, position: int, progress: Progress | None = None, *, accepts_loss: bool = False) -> Cut:
    """Delete the group at `position` and everything after it. It can be repeated if it was interrupted.

    Raise JournalError if a broker could not start afterwards, or if messages before the position could not be read,
    unless `accepts_loss`. Raise JournalLocked if a broker uses the journal."""
    lock = disk.lock(LOCK)
    try:
        examination = _try_cut(disk, position, part_of(progress, 0))
        if examination.refusal or (examination.lost and not accepts_loss):
            raise _refusal(disk, position, examination)
        return cut_files(disk, position, part_of(progress, 1))
    finally:
        lock.close()


def _try_cut(disk: Disk, position: int, progress: Progress | None) -> Examination:
    view = OverlayDisk(disk)
    cut_files(view, position, keeps_bytes=False)
    return examine(view, progress)


def _refusal(disk: Disk, position: int, examination: Examination) -> errors.JournalError:
    if examination.refusal:
        why = f"a broker would not start afterwards: {examination.refusal}"
    else:
        why = (
            f"{examination.lost_messages} messages before it can't be read, and the earlier state needs them. "
            "Their segments were recycled since, or are damaged"
        )
    error = errors.JournalError(f"the journal can't be cut at {position}: {why}")
    error.advice = f"{_what_to_do(disk, position, examination)}."
    return error


def _what_to_do(disk: Disk, position: int, examination: Examination) -> str:
    first = first_position(disk)
    if first > position:
        lost = _try_cut(disk, first, None).lost_messages
        loss = f", with `--accept-loss`: {lost} messages before it can't be read" if lost else ""
        return f"The journal can be cut from position {first} on{loss}"
    if not examination.refusal:
        return "`--accept-loss` cuts nevertheless; a broker then answers RECORD_CORRUPT for these messages"
    return f"Cut at the first damage, which is after position {first}" if first else "Restore the folder from a copy"


def first_position(disk: Disk) -> int:
    """Return the lowest position at which no segment is missing that the state there needs; 0 if there is none."""
    heads = check_snapshots(disk, open_layout(disk), Report(""))
    for kept in [None, *heads]:
        try:
            found = _first_position(disk, heads, kept)
        except errors.JournalError:
            # There is no path from this snapshot to such a position.
            continue
        if found:
            return found
    return 0


def _first_position(disk: Disk, heads: list[SnapshotHead], kept: SnapshotHead | None) -> int:
    """Replay from one snapshot; None = from the beginning of the journal."""
    view = OverlayDisk(disk)
    for head in heads:
        if head is not kept:
            view.remove(snapshot_path(head.sequence))
    journal = FileJournal(view, InlineWorker())
    engine = new_engine(journal, Limits())
    existing = set(segment_numbers(disk))
    missing: list[int] | None = None
    try:
        for group in replay(journal, journal.load(), engine):
            # What is missing can only become less: no record is added to an older extent.
            candidates = engine.state.live if missing is None else missing
            missing = [number for number in candidates if number not in existing and number in engine.state.live]
            if not missing:
                return group.end
    finally:
        journal.close()
    return 0
