"""The newest segment is lost, zeroed or truncated between two starts: that is detected, and the segment can be cut."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from oncemq.journal.files.check import check
from oncemq.journal.files.cut import cut
from oncemq.journal.files.layout import segment_path
from oncemq.protocol import errors
from tests.journal.rig import BLOCK_BYTES, LARGE, SEGMENT_BYTES, events_of, loaded, new_journal, snapshot, write
from tests.simulation.environment.disk import SimCrash, SimDisk

LAST = segment_path(3)
MARKER = "journal.begun"


def three_segments() -> SimDisk:
    disk, journal = new_journal()
    for number in range(3):
        write(journal, [LARGE], b"event %d" % number)
    disk.power_loss()
    return disk


def lost(disk: SimDisk, path: str = LAST) -> None:
    disk.remove(path)


def zeroed(disk: SimDisk, path: str = LAST) -> None:
    disk.damage(path, 0, bytes(SEGMENT_BYTES))


def shortened(disk: SimDisk, path: str = LAST) -> None:
    file = disk.open(path)
    half = file.read(0, SEGMENT_BYTES // 2)
    disk.remove(path)
    disk.open(path, create=True).write(0, [half])


@pytest.mark.parametrize("harm", [lost, zeroed, shortened])
def test_a_lost_or_damaged_last_segment_is_detected_and_can_be_cut(harm: Callable[[SimDisk], None]) -> None:
    disk = three_segments()
    harm(disk)
    with pytest.raises(errors.JournalCorrupt, match=r"segment 3 was begun: segments/000000000003 is missing"):
        loaded(disk)
    (problem, *_) = check(disk).problems
    assert problem.file == LAST
    end = 2 * SEGMENT_BYTES + BLOCK_BYTES + 40 * BLOCK_BYTES
    cut(disk, problem.position if harm is not shortened else end)
    assert check(disk).is_good
    journal, groups = loaded(disk)
    assert events_of(groups) == [b"event 0", b"event 1"]
    write(journal, [LARGE], b"goes on")
    disk.power_loss()
    lost(disk)
    with pytest.raises(errors.JournalCorrupt, match="segment 3 was begun"):
        loaded(disk)


def test_a_lost_last_segment_after_a_completely_full_one_can_be_cut() -> None:
    disk, journal = new_journal()
    room = journal.next_slot(0).free_bytes
    write(journal, events=b"f" * room)
    write(journal, events=b"next")
    disk.power_loss()
    lost(disk, segment_path(2))
    (problem,) = check(disk).problems
    assert problem.position == 2 * SEGMENT_BYTES
    cut(disk, problem.position)
    assert len(loaded(disk)[1]) == 1


def test_a_zeroed_last_segment_is_detected_if_a_snapshot_points_to_its_first_group() -> None:
    disk, journal = new_journal()
    write(journal, [LARGE])
    journal.next_slot(len(LARGE))
    snapshot(journal)
    write(journal, [LARGE])
    disk.power_loss()
    zeroed(disk, segment_path(2))
    with pytest.raises(errors.JournalCorrupt, match="the segment's header is damaged"):
        loaded(disk)


def test_a_journal_without_a_marker_opens_and_gets_one() -> None:
    disk = three_segments()
    disk.remove(MARKER)
    assert len(loaded(disk)[1]) == 3
    disk.power_loss()
    lost(disk)
    with pytest.raises(errors.JournalCorrupt, match="segment 3 was begun"):
        loaded(disk)


def test_a_full_disk_without_a_marker_opens_with_a_warning() -> None:
    disk = three_segments()
    disk.remove(MARKER)
    disk.capacity_bytes = 0
    journal, groups = loaded(disk)
    assert len(groups) == 3
    assert MARKER in journal.warnings[-1]


def test_a_torn_marker_leaves_the_previous_one() -> None:
    """After a power failure at any point of beginning a segment, the journal opens and detects a lost segment."""
    for seed in range(10):
        for operations in range(8):
            disk, journal = new_journal(seed)
            write(journal, [LARGE])
            write(journal, [LARGE])
            disk.crash_after(operations)
            with suppress(SimCrash):
                write(journal, [LARGE])
            disk.power_loss()
            with disk.without(segment_path(2)), pytest.raises(errors.JournalCorrupt):
                loaded(disk)
            assert len(loaded(disk)[1]) >= 2
