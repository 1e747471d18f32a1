"""The contract of a journal, on every implementation."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncemq.journal.contract import Group, Journal, RecordRef
from oncemq.protocol import errors
from tests.journal.rig import BACKENDS, LARGE, SEGMENT_BYTES, Backend, begin, events_of, snapshot, write


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return BACKENDS[request.param](tmp_path / "data", lambda: str(request.getfixturevalue("postgres")))


@pytest.fixture
def journal(backend: Backend) -> Journal:
    journal = backend.open()
    list(journal.load().groups)
    return journal


def test_a_new_journal_is_empty(backend: Backend) -> None:
    loaded = backend.open().load()
    assert loaded.snapshot is None
    assert list(loaded.groups) == []


def test_records_are_read_back(journal: Journal) -> None:
    first = write(journal, [b"one", b"two" * 100, b""])
    second = write(journal, [b"x" * 5000])
    payloads = [payload for payload, _ in journal.read([*second, *first])]
    assert payloads == [b"x" * 5000, b"one", b"two" * 100, b""]


def test_a_read_refuses_any_other_record(journal: Journal) -> None:
    (wanted,) = write(journal, [b"value"])
    others = [
        RecordRef(wanted.position + 8, 7, 0, 5),
        RecordRef(wanted.position, 8, 0, 5),
        RecordRef(wanted.position, 7, 1, 5),
        RecordRef(wanted.position, 7, 0, 4),
        RecordRef(wanted.position + 100 * SEGMENT_BYTES, 7, 0, 5),
    ]
    for other in others:
        with pytest.raises(errors.RecordCorrupt):
            journal.read([other])
    assert journal.read([RecordRef(wanted.position, 7, -1, 5)])[0][0] == b"value"


def test_synced_groups_are_replayed_in_order(backend: Backend, journal: Journal) -> None:
    for number in range(200):
        write(journal, [b"p" * number], b"event %d" % number, time_ms=1000 + number)
    groups = list(backend.reopen().load().groups)
    assert [group.events for group in groups] == [b"event %d" % number for number in range(200)]
    assert [group.sequence for group in groups] == list(range(1, 201))
    assert groups[-1].time_ms == 1199


def test_records_are_read_back_after_a_restart(backend: Backend, journal: Journal) -> None:
    wanted = [write(journal, [b"payload %d" % number * 50])[0] for number in range(100)]
    again = backend.reopen()
    list(again.load().groups)
    assert [payload for payload, _ in again.read(wanted)] == [b"payload %d" % number * 50 for number in range(100)]


def test_writing_continues_after_a_restart(backend: Backend, journal: Journal) -> None:
    write(journal, events=b"before")
    again = backend.reopen()
    list(again.load().groups)
    write(again, events=b"behind")
    assert events_of(list(backend.reopen().load().groups)) == [b"before", b"behind"]


def test_a_clean_stop_confirms_the_last_group_once(backend: Backend, journal: Journal) -> None:
    write(journal, events=b"last")
    journal.confirm()
    journal.confirm()
    journal.close()
    groups = list(backend.reopen().load().groups)
    assert [group.events for group in groups] == [b"last", b""]


def test_an_empty_group_records_the_time(backend: Backend, journal: Journal) -> None:
    write(journal, events=b"last", time_ms=5)
    write(journal, events=b"", time_ms=9_000)
    groups = list(backend.reopen().load().groups)
    assert [(group.time_ms, group.events) for group in groups] == [(5, b"last"), (9_000, b"")]


def test_a_slot_is_within_one_extent_and_large_enough(journal: Journal) -> None:
    for size in (100, 20_000, 15_000, 100, 31_000):
        place = journal.next_slot(size)
        assert place.free_bytes >= size
        assert place.writable_bytes == place.free_bytes
        assert place.position // SEGMENT_BYTES == (place.position + size - 1) // SEGMENT_BYTES
        begin(journal, [b"x" * (size - 100)])
        journal.sync()


def test_a_slot_is_never_larger_than_an_extent(journal: Journal) -> None:
    write(journal, [b"x"])
    assert journal.next_slot(10 * SEGMENT_BYTES).free_bytes < 10 * SEGMENT_BYTES


def test_a_snapshot_shortens_the_replay(backend: Backend, journal: Journal) -> None:
    write(journal, events=b"in the snapshot")
    assert journal.replay_bytes > 0
    snapshot(journal, [b"chunk one", b"", b"chunk two" * 1000])
    assert journal.replay_bytes == 0
    write(journal, events=b"behind it")
    loaded = backend.reopen().load()
    assert loaded.snapshot == [b"chunk one", b"", b"chunk two" * 1000]
    assert events_of(list(loaded.groups)) == [b"behind it"]


def test_a_snapshot_of_no_chunks_is_a_snapshot(backend: Backend, journal: Journal) -> None:
    write(journal, events=b"forgotten")
    snapshot(journal, [])
    loaded = backend.reopen().load()
    assert loaded.snapshot == []
    assert events_of(list(loaded.groups)) == []


def test_an_aborted_snapshot_leaves_nothing(backend: Backend, journal: Journal) -> None:
    write(journal, events=b"stays")
    writer = journal.begin_snapshot()
    assert writer is not None
    writer.add(b"half")
    writer.abort()
    journal.maintain()
    assert events_of(list(backend.reopen().load().groups)) == [b"stays"]


def test_there_is_one_snapshot_at_a_time(journal: Journal) -> None:
    writer = journal.begin_snapshot()
    assert writer is not None
    assert journal.begin_snapshot() is None
    writer.finish()
    journal.maintain()
    journal.maintain()
    assert journal.begin_snapshot() is not None


def test_groups_written_during_a_snapshot_are_replayed(backend: Backend, journal: Journal) -> None:
    write(journal, events=b"before")
    writer = journal.begin_snapshot()
    assert writer is not None
    writer.add(b"state")
    write(journal, events=b"meanwhile")
    writer.finish()
    journal.maintain()
    assert journal.replay_bytes > 0
    loaded = backend.reopen().load()
    assert loaded.snapshot == [b"state"]
    assert events_of(list(loaded.groups)) == [b"meanwhile"]


def fill_extents(journal: Journal, count: int) -> list[RecordRef]:
    return [write(journal, [LARGE])[0] for _ in range(count)]


def test_extents_are_released_only_before_two_snapshots(journal: Journal) -> None:
    fill_extents(journal, 3)
    for snapshots in (0, 1):
        assert not any(extent.is_covered_by_snapshots for extent in journal.extents())
        journal.release({})
        assert len(journal.extents()) == 3 + snapshots
        snapshot(journal)
        fill_extents(journal, 1)
    assert [extent.is_covered_by_snapshots for extent in journal.extents()] == [True, True, False, False, False]
    journal.release({})
    assert [extent.number for extent in journal.extents()] == [3, 4, 5]


def test_a_second_snapshot_of_the_same_state_releases_extents(journal: Journal) -> None:
    fill_extents(journal, 4)
    snapshot(journal)
    snapshot(journal)
    journal.release({})
    assert [extent.number for extent in journal.extents()] == [4]


def test_live_extents_are_not_released(backend: Backend, journal: Journal) -> None:
    wanted = fill_extents(journal, 4)
    snapshot(journal)
    snapshot(journal)
    live = wanted[1]
    journal.release({live.position // SEGMENT_BYTES: 1})
    assert [extent.number for extent in journal.extents()] == [2, 4]
    with pytest.raises(errors.RecordCorrupt):
        journal.read([wanted[0]])
    again = backend.reopen()
    list(again.load().groups)
    assert again.read([live])[0][0] == LARGE


def test_a_missing_live_extent_does_not_stop_the_release_of_others(journal: Journal) -> None:
    fill_extents(journal, 4)
    snapshot(journal)
    snapshot(journal)
    journal.release({99: 1})
    assert [extent.number for extent in journal.extents()] == [4]


def test_positions_are_never_used_again(journal: Journal) -> None:
    highest = 0
    for _ in range(30):
        (wanted,) = fill_extents(journal, 1)
        assert wanted.position > highest
        highest = wanted.position
        snapshot(journal)
        journal.maintain()
        journal.release({})


def test_a_scan_finds_every_record_of_an_extent(journal: Journal) -> None:
    wanted = [one for _ in range(40) for one in write(journal, [b"a" * 300, b"b" * 500])]
    in_first = [one for one in wanted if one.position // SEGMENT_BYTES == 1]
    found = []
    position = 0
    while True:
        heads, position = journal.scan(1, position, 4000)
        found += [RecordRef(head.position, head.topic_id, head.first_offset, head.size) for head in heads]
        if not position:
            break
    assert found == in_first
    assert len(wanted) > len(in_first) > 20


def test_a_closed_journal_refuses_everything(journal: Journal) -> None:
    journal.close()
    with pytest.raises(errors.JournalFailed):
        journal.next_slot(10)
    with pytest.raises(errors.JournalFailed):
        journal.append(Group(1, b"late", ()))


def test_writable_bytes_is_known(journal: Journal) -> None:
    before = journal.writable_bytes()
    assert before > 0
    assert journal.describe()
    assert len(journal.journal_id) == 16
    assert journal.extent_bytes == SEGMENT_BYTES


def test_a_raised_term_is_durable_and_never_decreases(backend: Backend) -> None:
    journal = backend.open()
    list(journal.load().groups)
    journal.raise_term(7)
    journal.raise_term(3)
    assert journal.term == 7
    write(journal)
    assert backend.reopen().term >= 7
