"""The newest segment is lost, zeroed or cut short between two starts: it is missed, and can be given up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.journal.rig import BLOCK_BYTES, LARGE, SEGMENT_BYTES, events_of, loaded, new_journal, snapshot, write
from tests.simulation.environment.disk import SimCrash, SimDisk

from oncemq.journal.files.check import check
from oncemq.journal.files.cut import cut
from oncemq.journal.files.layout import segment_path
from oncemq.protocol import errors

LAST = segment_path(3)
NOTE = "journal.begun"


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
def test_a_harmed_last_segment_is_missed_and_can_be_given_up(harm: Callable[[SimDisk], None]) -> None:
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


def test_a_lost_last_segment_behind_one_that_is_full_to_the_last_byte_can_be_given_up() -> None:
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


def test_a_zeroed_last_segment_is_missed_where_a_snapshot_points_to_its_first_group() -> None:
    disk, journal = new_journal()
    write(journal, [LARGE])
    journal.next_slot(len(LARGE))
    snapshot(journal)
    write(journal, [LARGE])
    disk.power_loss()
    zeroed(disk, segment_path(2))
    with pytest.raises(errors.JournalCorrupt, match="the segment's header is damaged"):
        loaded(disk)


def test_a_journal_without_a_note_opens_and_has_one_from_then_on() -> None:
    disk = three_segments()
    disk.remove(NOTE)
    assert len(loaded(disk)[1]) == 3
    disk.power_loss()
    lost(disk)
    with pytest.raises(errors.JournalCorrupt, match="segment 3 was begun"):
        loaded(disk)


def test_a_full_disk_without_a_note_opens_and_says_what_is_missing() -> None:
    disk = three_segments()
    disk.remove(NOTE)
    disk.capacity_bytes = 0
    journal, groups = loaded(disk)
    assert len(groups) == 3
    assert NOTE in journal.warnings[-1]


def test_a_note_that_is_torn_leaves_the_one_before() -> None:
    """Losing power at any point of beginning a segment leaves a journal that opens, and misses what is lost."""
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
