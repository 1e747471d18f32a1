"""What recovery does with each kind of damage."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from oncemq.journal.contract import Group
from oncemq.journal.files.group import encode
from oncemq.journal.files.layout import decode_segment_head, make_layout
from oncemq.journal.worker import StepWorker
from oncemq.protocol import errors
from tests.journal.rig import (
    BLOCK_BYTES,
    JOURNAL_ID,
    LARGE,
    SEGMENT_BYTES,
    begin,
    events_of,
    loaded,
    new_journal,
    open_sim,
    snapshot,
    write,
)
from tests.simulation.environment.disk import SimCrash, SimDisk

LAYOUT = make_layout(JOURNAL_ID, SEGMENT_BYTES, BLOCK_BYTES)
FIRST = "segments/000000000001"


def content(disk: SimDisk, path: str) -> bytes:
    file = disk.open(path)
    return file.read(0, file.size())


def test_a_torn_last_group_is_cut_off_and_its_bytes_are_kept() -> None:
    disk, journal = new_journal()
    write(journal, [b"kept"], b"kept")
    begin(journal, [b"t" * 3000], b"torn")
    torn = content(disk, FIRST)[2 * BLOCK_BYTES :][: 7 * BLOCK_BYTES]
    disk.kill()
    disk.damage(FIRST, 4 * BLOCK_BYTES, bytes(BLOCK_BYTES))
    journal, groups = loaded(disk)
    assert events_of(groups) == [b"kept"]
    (name,) = disk.list("cut")
    saved = content(disk, f"cut/{name}")
    assert len(saved) == len(torn)
    assert saved[: 2 * BLOCK_BYTES] == torn[: 2 * BLOCK_BYTES]
    assert "was not finished" in journal.warnings[0]
    assert name in journal.warnings[0]


def test_the_position_of_a_cut_group_is_used_again() -> None:
    disk, journal = new_journal()
    begin(journal, [b"t" * 3000], b"torn")
    disk.kill()
    disk.damage(FIRST, 2 * BLOCK_BYTES, bytes(BLOCK_BYTES))
    journal, groups = loaded(disk)
    assert events_of(groups) == []
    write(journal, [b"short"], b"instead")
    disk.power_loss()
    assert events_of(loaded(disk)[1]) == [b"instead"]


@pytest.mark.parametrize("group", [0, 1, 2])
@pytest.mark.parametrize("byte", [0, 9, 20, 60, 70, 130, 160, 250, 416])
def test_a_damaged_group_with_a_good_one_after_it_is_refused(group: int, byte: int) -> None:
    disk, journal = new_journal()
    for number in range(4):
        write(journal, [b"p" * 300], b"event %d" % number)
    offset = BLOCK_BYTES * (1 + group) + byte
    journal.close()
    disk.damage(FIRST, offset, bytes([content(disk, FIRST)[offset] ^ 4]))
    with pytest.raises(errors.JournalCorrupt) as caught:
        loaded(disk)
    assert f"{FIRST} at byte {BLOCK_BYTES * (1 + group)}" in str(caught.value)
    assert "oncemq journal check" in caught.value.advice


def test_a_confirmed_last_group_is_not_taken_for_torn() -> None:
    disk, journal = new_journal()
    write(journal, [b"acknowledged"])
    journal.close()
    disk.damage(FIRST, BLOCK_BYTES + 70, b"rot")
    with pytest.raises(errors.JournalCorrupt):
        loaded(disk)


def test_damage_before_a_good_group_in_a_later_segment_is_refused() -> None:
    disk, journal = new_journal()
    write(journal, [LARGE])
    write(journal, [LARGE])
    disk.kill()
    disk.damage(FIRST, BLOCK_BYTES + 30, b"rot")
    with pytest.raises(errors.JournalCorrupt, match="segment 2 follows"):
        loaded(disk)


def test_a_damaged_segment_header_is_refused_if_groups_follow() -> None:
    disk, journal = new_journal()
    write(journal, [LARGE])
    write(journal, [LARGE])
    disk.kill()
    disk.damage("segments/000000000002", 20, b"rot")
    with pytest.raises(errors.JournalCorrupt, match="follows in segments/000000000002 at byte 512"):
        loaded(disk)


def test_a_missing_segment_is_refused() -> None:
    disk, journal = new_journal()
    for _ in range(3):
        write(journal, [LARGE])
    disk.kill()
    disk.remove("segments/000000000002")
    with pytest.raises(errors.JournalCorrupt, match="segment 3 follows"):
        loaded(disk)
    disk.kill()
    disk.remove(FIRST)
    with pytest.raises(errors.JournalCorrupt, match=r"000000000001 .*missing"):
        loaded(disk)


def test_a_gap_in_the_sequence_is_refused() -> None:
    disk, journal = new_journal()
    write(journal)
    disk.kill()
    position = SEGMENT_BYTES + 2 * BLOCK_BYTES
    parts, _ = encode(LAYOUT, 3, position, Group(1, b"third", ()))
    disk.damage(FIRST, 2 * BLOCK_BYTES, b"".join(parts))
    with pytest.raises(errors.JournalCorrupt, match=r"group 2 is damaged.*group 3"):
        loaded(disk)


def test_an_error_while_reading_is_never_taken_for_the_end() -> None:
    disk, journal = new_journal()
    write(journal)
    disk.kill()
    disk.unreadable.add(FIRST)
    with pytest.raises(errors.JournalFailed):
        loaded(disk)
    disk.unreadable.clear()
    disk.kill()
    assert events_of(loaded(disk)[1]) == [b"event"]


def test_a_payload_cannot_imitate_a_group() -> None:
    """The payload is a block with a group of another journal, with the position at which it is written."""
    disk, journal = new_journal()
    foreign = make_layout(b"another journal!", SEGMENT_BYTES, BLOCK_BYTES)
    position = SEGMENT_BYTES + 2 * BLOCK_BYTES
    parts, _ = encode(foreign, 2, position, Group(1, b"forged", ()))
    lead = BLOCK_BYTES - 64 - 48
    begin(journal, [b"\0" * lead + b"".join(parts)], b"real")
    assert content(disk, FIRST)[2 * BLOCK_BYTES :][:8] == b"1MQGROUP"
    disk.kill()
    disk.damage(FIRST, BLOCK_BYTES, b"rot")
    assert events_of(loaded(disk)[1]) == []


def test_groups_left_over_in_a_recycled_segment_are_not_replayed() -> None:
    disk, journal = new_journal()
    for number in range(60):
        write(journal, [b"p" * 1000], b"old %d" % number)
        if number % 10 == 9:
            snapshot(journal)
            journal.release({})
    numbers = [extent.number for extent in journal.extents()]
    assert numbers[0] > 1
    recycled = [name for name in disk.list("segments") if not name.startswith("spare")]
    assert any(content(disk, f"segments/{name}").count(b"old ") > 1 for name in recycled)
    for number in range(5):
        write(journal, events=b"new %d" % number)
        disk.power_loss()
        journal, groups = loaded(disk)
        assert events_of(groups)[-1] == b"new %d" % number
        assert [group.sequence for group in groups] == list(range(groups[0].sequence, groups[-1].sequence + 1))


def test_the_last_group_is_made_durable_before_it_is_served() -> None:
    """A kill leaves it only in the page cache. Once recovery has returned it, a power failure must not lose it."""
    for seed in range(30):
        disk, journal = new_journal(seed)
        begin(journal, [b"unsynced" * 100], b"unsynced")
        disk.kill()
        journal, groups = loaded(disk)
        assert events_of(groups) == [b"unsynced"]
        disk.power_loss()
        assert events_of(loaded(disk)[1]) == [b"unsynced"]


def test_a_group_whose_sync_failed_is_durable_once_it_is_served() -> None:
    """After a failed sync the page cache is clean, and a second sync alone would do nothing."""
    for seed in range(30):
        disk, journal = new_journal(seed)
        write(journal, events=b"good")
        begin(journal, [b"x" * 1000], b"doubtful")
        disk.fail_sync()
        with pytest.raises(errors.JournalFailed):
            journal.sync()
        disk.kill()
        groups = loaded(disk)[1]
        disk.power_loss()
        assert events_of(loaded(disk)[1]) == events_of(groups) == [b"good", b"doubtful"]


def test_a_power_failure_while_the_last_group_is_written_again_does_not_damage_it() -> None:
    for seed in range(20):
        for operations in range(12):
            disk, journal = new_journal(seed)
            write(journal, [b"acknowledged" * 50], b"acknowledged")
            disk.kill()
            disk.crash_after(operations)
            with suppress(SimCrash):
                loaded(disk)
            disk.power_loss()
            assert events_of(loaded(disk)[1]) == [b"acknowledged"]


def test_a_power_failure_while_an_empty_segments_header_is_written_again_does_not_damage_it() -> None:
    for seed in range(200):
        disk, journal = new_journal(seed)
        if seed % 2:
            write(journal, [LARGE])
            journal.next_slot(len(LARGE))
            snapshot(journal)
            snapshot(journal)
            journal.release({})
        disk.kill()
        disk.crash_after(seed // 2 % 3)
        with suppress(SimCrash):
            loaded(disk)
        disk.power_loss()
        journal, _ = loaded(disk)
        write(journal, events=b"goes on")


def test_a_crash_at_any_point_of_the_creation_leaves_a_folder_that_can_be_used() -> None:
    for operations in range(40):
        disk = SimDisk(Random(operations))
        disk.crash_after(operations)
        with suppress(SimCrash):
            open_sim(disk)
        disk.power_loss()
        journal, groups = loaded(disk)
        assert groups == []
        write(journal, events=b"first")
        disk.power_loss()
        assert events_of(loaded(disk)[1]) == [b"first"]


def test_a_crash_at_any_point_of_beginning_a_segment_loses_nothing() -> None:
    for operations in range(8):
        for seed in range(10):
            disk, journal = new_journal(seed)
            write(journal, [LARGE], b"first")
            disk.crash_after(operations)
            try:
                write(journal, [LARGE], b"second")
                ended = True
            except SimCrash:
                ended = False
            disk.power_loss()
            journal, groups = loaded(disk)
            assert events_of(groups) in ([[b"first", b"second"]] if ended else [[b"first"], [b"first", b"second"]])
            write(journal, [LARGE], b"third")
            disk.power_loss()
            assert events_of(loaded(disk)[1]) == [*events_of(groups), b"third"]


def test_a_group_that_fills_its_segment_to_the_last_byte_is_followed_by_the_next_segment() -> None:
    disk, journal = new_journal()
    room = journal.next_slot(0).free_bytes
    write(journal, [b"x" * (room - 48 - 5 - 3)], b"exact")
    assert journal.next_slot(0).position // SEGMENT_BYTES == 2
    disk.kill()
    assert events_of(loaded(disk)[1]) == [b"exact"]


def test_a_snapshot_taken_at_a_segments_last_byte_is_recovered() -> None:
    for writes_behind in (0, 1):
        disk, journal = new_journal()
        room = journal.next_slot(0).free_bytes
        write(journal, [b"x" * (room - 48 - 5 - 3)], b"exact")
        snapshot(journal)
        for _ in range(writes_behind):
            write(journal, events=b"behind")
        disk.power_loss()
        journal, groups = loaded(disk)
        assert events_of(groups) == [b"behind"] * writes_behind
        write(journal, events=b"later")
        disk.power_loss()
        assert events_of(loaded(disk)[1])[-1] == b"later"


# Snapshots.


def test_instead_of_a_damaged_snapshot_the_older_one_is_used() -> None:
    disk, journal = new_journal()
    write(journal, events=b"one")
    snapshot(journal, [b"older"])
    write(journal, events=b"two")
    snapshot(journal, [b"newer"])
    write(journal, events=b"three")
    disk.kill()
    newest = disk.list("snapshots")[1]
    disk.damage(f"snapshots/{newest}", 70, b"rot")
    journal = open_sim(disk)
    found = journal.load()
    assert found.snapshot == [b"older"]
    assert events_of(list(found.groups)) == [b"two", b"three"]
    assert newest in journal.warnings[0]
    assert f"{newest}.bad" in disk.list("snapshots")


def test_without_a_good_snapshot_replay_starts_at_the_beginning_if_it_exists() -> None:
    disk, journal = new_journal()
    write(journal, events=b"one")
    snapshot(journal)
    disk.kill()
    disk.damage(f"snapshots/{disk.list('snapshots')[0]}", 0, b"rot")
    found = open_sim(disk)
    loaded_again = found.load()
    assert loaded_again.snapshot is None
    assert events_of(list(loaded_again.groups)) == [b"one"]


def test_without_a_good_snapshot_and_without_the_beginning_recovery_refuses() -> None:
    disk, journal = new_journal()
    for _ in range(4):
        write(journal, [LARGE])
    snapshot(journal)
    snapshot(journal)
    journal.release({})
    disk.kill()
    for name in disk.list("snapshots"):
        if name.isdigit():
            disk.damage(f"snapshots/{name}", 0, b"rot")
    with pytest.raises(errors.JournalCorrupt, match="missing"):
        loaded(disk)


def test_an_unfinished_snapshot_does_not_count() -> None:
    worker = StepWorker()
    disk, journal = new_journal(1, worker)
    write(journal, events=b"one")
    writer = journal.begin_snapshot()
    assert writer is not None
    writer.add(b"state")
    writer.finish()
    worker.advance()
    disk.kill()
    found = open_sim(disk).load()
    assert found.snapshot is None
    assert events_of(list(found.groups)) == [b"one"]


# Versions.


def raise_version(disk: SimDisk, path: str, offset: int = 8) -> None:
    import struct

    import xxhash

    raw = bytearray(content(disk, path)[:64])
    raw[offset : offset + 4] = struct.pack("<I", 99)
    raw[56:64] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(raw[:56])))
    disk.damage(path, 0, bytes(raw))


@pytest.mark.parametrize("path", ["journal.meta", FIRST])
def test_a_newer_journal_is_refused_by_name(path: str) -> None:
    disk, journal = new_journal()
    write(journal)
    journal.close()
    raise_version(disk, path)
    with pytest.raises(errors.JournalVersion, match=f"{path} has journal format 99"):
        loaded(disk)


def test_a_newer_snapshot_is_refused_by_name() -> None:
    disk, journal = new_journal()
    write(journal)
    snapshot(journal)
    journal.close()
    raise_version(disk, f"snapshots/{disk.list('snapshots')[0]}")
    with pytest.raises(errors.JournalVersion, match="snapshot format 99"):
        loaded(disk)


def test_a_missing_or_damaged_meta_file_is_refused_if_there_are_groups() -> None:
    disk, journal = new_journal()
    write(journal)
    journal.close()
    disk.damage("journal.meta", 20, b"rot")
    with pytest.raises(errors.JournalCorrupt, match=r"journal\.meta is damaged"):
        loaded(disk)
    disk.remove("journal.meta")
    with pytest.raises(errors.JournalCorrupt, match=r"journal\.meta is missing"):
        loaded(disk)


def test_a_segment_header_has_its_number() -> None:
    disk, _ = new_journal()
    raw = content(disk, FIRST)
    head = decode_segment_head(raw, LAYOUT, 1)
    assert head is not None
    assert head.first_sequence == 1
    assert decode_segment_head(raw, LAYOUT, 2) is None
