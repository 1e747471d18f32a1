"""`journal check` and `serve` agree on damaged folders: what starts, and which messages are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from random import Random

import msgspec
import pytest

from oncemq.broker.housekeeping import Policy
from oncemq.broker.offline.check import check
from oncemq.broker.recovery import recover
from oncemq.disk.overlay import OverlayDisk
from oncemq.engine.snapshot.relocation import NeededRecord, needed_records
from oncemq.journal.contract import RECORD_HEADER_BYTES, SNAPSHOTS_KEPT, RecordRef
from oncemq.journal.files.check import Report
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.files.layout import segment_numbers, segment_path
from oncemq.journal.files.snapshot_codec import snapshot_path
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import errors
from oncemq.protocol.limits import Limits
from tests.broker.random_work import RandomWork
from tests.broker.rig import Rig
from tests.simulation.environment.disk import SimDisk

SEGMENT_BYTES = 64 * 1024
POLICY = Policy(look_every_ms=0, snapshot_bytes=SEGMENT_BYTES)
SEEDS = range(3)


def journal_on(disk: SimDisk | OverlayDisk) -> FileJournal:
    return FileJournal(disk, InlineWorker(), segment_bytes=SEGMENT_BYTES, block_bytes=512)


def needed_of(journal: FileJournal) -> list[NeededRecord]:
    capture = recover(journal, Limits(), Counter()).capture()
    return list(needed_records(iter(capture.chunk, None)))


def history(seed: int) -> SimDisk:
    """Return the disk of a broker with every kind of state that was stopped, killed or has lost power."""
    return deepcopy(_history(seed))


@cache
def _history(seed: int) -> SimDisk:
    disk = SimDisk(Random(seed))
    rig = Rig(journal_on(disk), policy=POLICY)
    work = RandomWork(rig, seed)
    work.run(300)
    work.stage()
    work.put_later()
    work.put()
    if seed % 3 == 0:
        rig.broker.stop()
    disk.kill() if seed % 3 < 2 else disk.power_loss()
    return disk


def ref(record: NeededRecord) -> RecordRef:
    return RecordRef(record.position, record.topic_id, record.first_offset, record.size)


def served(disk: SimDisk) -> tuple[bool, int]:
    """Return whether a broker starts and works, and how many batches it can't read. The disk is not changed."""
    try:
        needed = needed_of(journal_on(OverlayDisk(disk)))
        rig = Rig(journal_on(OverlayDisk(disk)), policy=POLICY)
    except (errors.JournalCorrupt, errors.JournalFailed):
        return False, 0
    lost = 0
    for record in needed:
        try:
            rig.journal.read([ref(record)])
        except errors.RecordCorrupt:
            lost += 1
    RandomWork(rig, 99).run(5)
    rig.rounds(5)
    rig.broker.stop()
    return True, lost


def lose(disk: SimDisk, path: str, _: Random) -> None:
    disk.remove(path)


def zero(disk: SimDisk, path: str, _: Random) -> None:
    disk.damage(path, 0, bytes(SEGMENT_BYTES))


def shorten(disk: SimDisk, path: str, _: Random) -> None:
    file = disk.open(path)
    content = file.read(0, 23)
    disk.remove(path)
    disk.open(path, create=True).write(0, [content])


def lengthen(disk: SimDisk, path: str, _: Random) -> None:
    disk.damage(path, SEGMENT_BYTES, b"x")


def flip(disk: SimDisk, path: str, random: Random) -> None:
    at = random.randrange(SEGMENT_BYTES)
    byte = disk.open(path).read(at, 1)
    disk.damage(path, at, bytes([byte[0] ^ 1 << random.randrange(8)]))


def make_unreadable(disk: SimDisk, path: str, _: Random) -> None:
    disk.unreadable.add(path)


DAMAGES: tuple[Callable[[SimDisk, str, Random], None], ...] = (lose, zero, shorten, lengthen, flip, make_unreadable)


def assert_agree(report: Report, disk: SimDisk) -> None:
    starts, lost = served(disk)
    assert (not report.refusal, report.lost_batches) == (starts, lost), report
    assert report.is_good or report.problems or report.refusal
    assert not (report.is_good and (lost or not starts)), report


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sound_folder_has_no_problems(seed: int) -> None:
    disk = history(seed)
    report = check(disk)
    assert report.is_good, report
    assert_agree(report, disk)
    # The check has changed nothing.
    assert msgspec.json.encode(check(disk)) == msgspec.json.encode(report)


def test_check_refuses_a_journal_in_use() -> None:
    disk = SimDisk(Random(1))
    journal = journal_on(disk)
    with pytest.raises(errors.JournalLocked):
        check(disk)
    journal.close()
    assert check(disk).is_good


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("seed", SEEDS)
def test_check_and_serve_agree_on_a_damaged_segment(seed: int, damage: Callable[[SimDisk, str, Random], None]) -> None:
    random = Random(seed)
    for number in segment_numbers(history(seed)):
        disk = history(seed)
        in_segment = [
            one for one in needed_of(journal_on(OverlayDisk(disk))) if one.position // SEGMENT_BYTES == number
        ]
        damage(disk, segment_path(number), random)
        report = check(disk)
        assert_agree(report, disk)
        if damage in (lose, zero, shorten, make_unreadable) and in_segment:
            assert report.refusal or report.lost_batches == len(in_segment)
            assert not report.is_good
        if damage is lengthen:
            assert report.is_good, report


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("damage", [lose, zero, shorten, make_unreadable])
@pytest.mark.parametrize("seed", SEEDS)
def test_check_and_serve_agree_on_damaged_snapshots(
    seed: int, damage: Callable[[SimDisk, str, Random], None], count: int
) -> None:
    disk = history(seed)
    valid = check(disk).snapshots
    assert len(valid) >= SNAPSHOTS_KEPT
    damaged = [snapshot_path(sequence) for sequence in valid[-count:]]
    for path in damaged:
        damage(disk, path, Random(seed))
    report = check(disk)
    assert_agree(report, disk)
    assert report.snapshots == valid[:-count]
    reported = [problem.file for problem in report.problems if problem.file in damaged]
    assert reported == ([] if damage is lose else damaged[::-1])
    if count == 1:
        # The other snapshot leads to the same state.
        assert served(disk) == served(history(seed))


def test_a_snapshot_that_cannot_be_read_is_not_renamed_and_counts_again_when_it_can() -> None:
    disk = history(0)
    newest = snapshot_path(check(disk).snapshots[-1])
    make_unreadable(disk, newest, Random(0))
    journal = journal_on(disk)
    needed = needed_of(journal)
    assert [newest in warning for warning in journal.warnings] == [True]
    disk.kill()
    disk.unreadable.clear()
    assert disk.exists(newest)
    journal = journal_on(disk)
    assert needed_of(journal) == needed
    assert not journal.warnings


@pytest.mark.parametrize("seed", SEEDS)
def test_check_reports_every_damaged_byte_of_a_needed_record(seed: int) -> None:
    random = Random(seed)
    disk = history(seed)
    # After a kill, damage in the last group looks like an unfinished write (docs/journal.md).
    confirmed = check(disk).last_groups[-1].position
    needed = [record for record in needed_of(journal_on(OverlayDisk(disk))) if record.position < confirmed]
    for record in random.sample(needed, 8):
        at = record.position % SEGMENT_BYTES + random.randrange(40)
        if random.random() < 0.5:
            at = record.position % SEGMENT_BYTES + RECORD_HEADER_BYTES + random.randrange(record.size)
        path = segment_path(record.position // SEGMENT_BYTES)
        [byte] = disk.open(path).read(at, 1)
        disk.damage(path, at, bytes([byte ^ 1 << random.randrange(8)]))
        report = check(disk)
        assert not report.is_good
        assert_agree(report, disk)
        disk.damage(path, at, bytes([byte]))
    assert check(disk).is_good
