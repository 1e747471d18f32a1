"""`journal check`, `export` and `cut`, on good and on damaged journals."""

from __future__ import annotations

import base64
import io

import msgspec
import pytest

from oncemq.journal.files.check import check
from oncemq.journal.files.cut import cut
from oncemq.journal.files.export import export
from oncemq.protocol import errors
from tests.journal.rig import BLOCK_BYTES, LARGE, SEGMENT_BYTES, begin, events_of, loaded, new_journal, snapshot, write
from tests.simulation.environment.disk import SimDisk

FIRST = "segments/000000000001"


def damaged_journal() -> SimDisk:
    """Four groups of one block each; the second is damaged in its events."""
    disk, journal = new_journal()
    for number in range(4):
        write(journal, [b"payload %d" % number], b"event %d" % number)
    journal.close()
    disk.damage(FIRST, 2 * BLOCK_BYTES + 64 + 48 + 16, b"E")
    return disk


def test_a_good_journal_has_no_problems() -> None:
    disk, journal = new_journal()
    for number in range(5):
        write(journal, [LARGE, b"small"], b"event %d" % number)
    snapshot(journal)
    journal.close()
    calls: list[tuple[int, int]] = []
    report = check(disk, lambda done, total: calls.append((done, total)))
    assert report.problems == []
    assert report.is_good
    assert (report.segments, report.groups, report.records) == (5, 6, 10)
    assert report.payload_bytes == 5 * (len(LARGE) + 5)
    assert (report.first_sequence, report.last_sequence, report.snapshots) == (1, 6, [5])
    assert calls[-1] == (5, 5)
    assert msgspec.json.decode(msgspec.json.encode(report), type=dict)["groups"] == 6


def test_check_reports_file_and_byte_of_the_damage() -> None:
    report = check(damaged_journal())
    (problem,) = report.problems
    assert (problem.file, problem.byte) == (FIRST, 2 * BLOCK_BYTES)
    assert problem.position == SEGMENT_BYTES + 2 * BLOCK_BYTES
    assert report.groups == 4


def test_check_finds_missing_segments_and_damaged_headers() -> None:
    disk, journal = new_journal()
    for _ in range(4):
        write(journal, [LARGE])
    journal.close()
    disk.damage("segments/000000000003", 20, b"rot")
    disk.remove("segments/000000000002")
    problems = [problem.what for problem in check(disk).problems]
    assert problems == ["segment 2 is missing", "the segment's header is damaged"]


def test_check_finds_a_damaged_last_group_before_the_next_segment() -> None:
    disk, journal = new_journal()
    write(journal, [b"x"])
    write(journal, [LARGE])
    write(journal, [LARGE])
    journal.close()
    disk.damage(FIRST, 2 * BLOCK_BYTES, b"rot")
    (problem,) = check(disk).problems
    assert (problem.file, problem.byte) == (FIRST, 2 * BLOCK_BYTES)


def test_an_unfinished_last_group_is_a_note_and_not_a_problem() -> None:
    disk, journal = new_journal()
    write(journal)
    begin(journal, [b"x" * 1000])
    disk.kill()
    disk.damage(FIRST, 3 * BLOCK_BYTES, bytes(BLOCK_BYTES))
    report = check(disk)
    assert report.is_good
    assert "not finished" in report.notes[0]


def test_check_finds_damaged_snapshots() -> None:
    disk, journal = new_journal()
    write(journal)
    snapshot(journal)
    journal.close()
    name = disk.list("snapshots")[0]
    disk.damage(f"snapshots/{name}", 66, b"rot")
    (problem,) = check(disk).problems
    assert problem.file == f"snapshots/{name}"


def test_check_refuses_a_folder_without_a_journal() -> None:
    disk, journal = new_journal()
    journal.close()
    disk.remove("journal.meta")
    with pytest.raises(errors.JournalError, match="holds no journal"):
        check(disk)


def test_export_writes_everything_that_can_be_read() -> None:
    output = io.BytesIO()
    exported = export(damaged_journal(), output, decode_events=lambda events: events.decode())
    lines = [msgspec.json.decode(line) for line in output.getvalue().splitlines()]
    records = [line for line in lines if line["kind"] == "record"]
    assert [base64.b64decode(line["payload"]) for line in records] == [b"payload %d" % number for number in range(4)]
    assert [line["in_good_group"] for line in records] == [True, False, True, True]
    assert [line["events"] for line in lines if line["kind"] == "group"] == ["event 0", "event 2", "event 3", ""]
    assert (exported.groups, exported.records, exported.saved_records) == (4, 3, 1)


def test_a_cut_makes_a_damaged_journal_usable_and_keeps_the_bytes() -> None:
    disk = damaged_journal()
    with pytest.raises(errors.JournalCorrupt):
        loaded(disk)
    (problem,) = check(disk).problems
    report = cut(disk, problem.position)
    assert report.groups == 3
    disk.power_loss()
    (saved,) = report.saved
    file = disk.open(saved)
    assert b"payload 3" in file.read(0, file.size())
    assert check(disk).is_good
    journal, groups = loaded(disk)
    assert events_of(groups) == [b"event 0"]
    write(journal, events=b"goes on")
    disk.power_loss()
    assert events_of(loaded(disk)[1]) == [b"event 0", b"goes on"]


def test_a_cut_deletes_later_segments_and_snapshots() -> None:
    disk, journal = new_journal()
    write(journal, events=b"stays")
    snapshot(journal, [b"stays too"])
    wanted = write(journal, [LARGE], b"goes")
    write(journal, [LARGE], b"goes")
    snapshot(journal, [b"goes"])
    write(journal, [LARGE], b"goes")
    journal.close()
    report = cut(disk, wanted[0].position - 64)
    assert (report.segments, report.snapshots) == (2, 1)
    disk.power_loss()
    journal, groups = loaded(disk)
    assert events_of(groups) == []
    assert [extent.number for extent in journal.extents()] == [1]


@pytest.mark.parametrize("position", [5, SEGMENT_BYTES, SEGMENT_BYTES + 100, 77 * SEGMENT_BYTES + BLOCK_BYTES])
def test_a_cut_at_a_position_without_a_group_is_refused(position: int) -> None:
    disk, journal = new_journal()
    journal.close()
    with pytest.raises(errors.JournalError):
        cut(disk, position)
