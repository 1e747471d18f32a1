"""A full disk, failing writes, spare segments and recycling."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from oncemq.journal.files.journal import FileJournal
from oncemq.journal.files.segments import SPARES_MAX
from oncemq.journal.worker import StepWorker
from oncemq.protocol import errors
from tests.journal.rig import LARGE, SEGMENT_BYTES, begin, events_of, loaded, new_journal, open_sim, snapshot, write
from tests.simulation.environment.disk import SimDisk


def fill(journal: FileJournal) -> int:
    """Put until the journal refuses. Return the number of puts."""
    count = 0
    while journal.next_slot(len(LARGE) + 100).writable_bytes > len(LARGE) + 100:
        write(journal, [LARGE], b"put")
        journal.maintain()
        count += 1
    return count


def full_disk(segments: int = 8) -> tuple[SimDisk, FileJournal]:
    disk = SimDisk(Random(1), capacity_bytes=segments * SEGMENT_BYTES + 3 * 64 * 1024 + 1024)
    journal, _ = loaded(disk)
    return disk, journal


def test_a_full_disk_refuses_puts_and_still_accepts_acks() -> None:
    _, journal = full_disk()
    assert fill(journal) == 6
    assert journal.writable_bytes() == 0
    place = journal.next_slot(100)
    assert place.writable_bytes == 0
    assert place.free_bytes > 100
    for _ in range(50):
        write(journal, events=b"ack")
        journal.maintain()
    assert journal.next_slot(100).writable_bytes == 0


def test_the_reserve_is_limited() -> None:
    _, journal = full_disk()
    fill(journal)
    count = 0
    while journal.next_slot(1000).free_bytes >= 1000:
        write(journal, events=b"a" * 1000)
        count += 1
    assert count > 40
    assert journal.next_slot(1000).free_bytes < 1000


def test_puts_resume_automatically_once_there_is_space() -> None:
    disk, journal = full_disk()
    fill(journal)
    for _ in range(200):
        journal.maintain()
    assert journal.next_slot(100).writable_bytes == 0
    disk.capacity_bytes += 4 * SEGMENT_BYTES
    for _ in range(200):
        journal.maintain()
    assert journal.next_slot(100).writable_bytes > 100
    assert fill(journal) == 4


def test_a_full_disk_is_freed_by_acks_and_snapshots_alone() -> None:
    _, journal = full_disk()
    fill(journal)
    assert journal.next_slot(100).writable_bytes == 0
    for _ in range(2):
        write(journal, events=b"acks")
        snapshot(journal)
    journal.release({})
    journal.maintain()
    assert journal.next_slot(100).writable_bytes > 0
    assert fill(journal) >= 4


def test_a_full_disk_can_be_recovered_and_still_accepts_acks() -> None:
    disk, journal = full_disk()
    fill(journal)
    disk.kill()
    journal, _ = loaded(disk)
    journal.maintain()
    assert journal.next_slot(100).writable_bytes == 0
    write(journal, events=b"ack")


def test_a_disk_that_is_too_small_for_a_journal_says_so() -> None:
    disk = SimDisk(Random(1), capacity_bytes=3 * SEGMENT_BYTES)
    with pytest.raises(errors.JournalError, match="no space for a new journal"):
        open_sim(disk)
    disk.capacity_bytes *= 4
    journal, _ = loaded(disk)
    write(journal)


def test_a_snapshot_larger_than_its_reserve_on_a_full_disk_is_given_up() -> None:
    disk, journal = full_disk()
    fill(journal)
    writer = journal.begin_snapshot()
    assert writer is not None
    for _ in range(40):
        writer.add(b"s" * 8192)
    writer.finish()
    journal.maintain()
    disk.capacity_bytes *= 4
    for _ in range(200):
        journal.maintain()
    snapshot(journal, [b"s" * 8192] * 40)
    disk.power_loss()
    assert open_sim(disk).load().snapshot == [b"s" * 8192] * 40


def test_a_full_disk_keeps_space_for_a_snapshot_while_the_state_grows() -> None:
    """Each snapshot is larger than half of its reserve, so a larger reserve is needed; and another program uses what is
    freed."""
    disk, journal = full_disk()
    fill(journal)
    for count in range(5, 9):
        disk.capacity_bytes = disk.used_bytes
        write(journal, events=b"acks")
        snapshot(journal, [b"s" * 8192 * count])
    disk.capacity_bytes += 2**20
    for _ in range(200):
        journal.maintain()
    names = disk.list("snapshots")
    assert len(names) == 3, names
    assert disk.open(f"snapshots/{names[-1]}").size() >= 2 * 8 * 8192


def test_the_disk_is_not_filled_again_and_again_while_it_is_full() -> None:
    disk, journal = full_disk()
    fill(journal)
    before = disk.faults["no space"]
    for _ in range(1000):
        journal.maintain()
    assert disk.faults["no space"] == before


def test_writing_that_is_faster_than_filling_waits_for_a_spare() -> None:
    worker = StepWorker()
    _, journal = new_journal(1, worker)
    for _ in range(20):
        assert journal.next_slot(len(LARGE) + 100).writable_bytes > len(LARGE)
        write(journal, [LARGE])


def test_released_segments_are_recycled_and_the_surplus_is_deleted() -> None:
    disk, journal = new_journal()
    for _ in range(20):
        write(journal, [LARGE])
        journal.maintain()
    snapshot(journal)
    snapshot(journal)
    journal.release({})
    names = disk.list("segments")
    assert len([name for name in names if name.startswith("spare")]) == SPARES_MAX
    filled = disk.labels["speed: zero-filled file"]
    for _ in range(4):
        write(journal, [LARGE])
        journal.maintain()
    assert disk.labels["speed: zero-filled file"] == filled


def failing_write(disk: SimDisk, journal: FileJournal) -> None:
    disk.fail_write()
    begin(journal)


def failing_sync(disk: SimDisk, journal: FileJournal) -> None:
    begin(journal)
    disk.fail_sync()
    journal.sync()


def failing_segment(disk: SimDisk, journal: FileJournal) -> None:
    write(journal, [LARGE])
    disk.fail_sync()
    journal.next_slot(len(LARGE))


def failing_snapshot(disk: SimDisk, journal: FileJournal) -> None:
    write(journal)
    disk.fail_sync()
    snapshot(journal)


@pytest.mark.parametrize("failing", [failing_write, failing_sync, failing_segment, failing_snapshot])
def test_a_failed_write_or_sync_is_final(failing: Callable[[SimDisk, FileJournal], None]) -> None:
    disk, journal = new_journal()
    write(journal, events=b"good")
    with pytest.raises(errors.JournalFailed):
        failing(disk, journal)
    calls: list[Callable[[], object]] = [
        lambda: journal.next_slot(1),
        lambda: begin(journal),
        journal.sync,
        journal.confirm,
        journal.maintain,
        journal.begin_snapshot,
        lambda: journal.release({}),
    ]
    for call in calls:
        with pytest.raises(errors.JournalFailed):
            call()
    journal.close()
    assert events_of(loaded(disk)[1])[0] == b"good"


def test_a_journal_that_was_not_loaded_refuses_everything() -> None:
    journal = open_sim(SimDisk(Random(1)))
    with pytest.raises(errors.JournalFailed, match="not loaded"):
        journal.next_slot(1)
