"""A journal of an older version: it is read, and gets the newer version before anything newer is written.

An OnceMQ that knows only the older version must refuse the version, and never fail to decode something.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from unittest.mock import patch

import pytest

from oncemq.journal.files import layout, meta
from oncemq.journal.files import snapshot_codec as snapshot_module
from oncemq.journal.files.check import check
from oncemq.protocol import errors
from oncemq.protocol.version import JOURNAL_VERSION, SNAPSHOT_VERSION
from tests.journal.rig import JOURNAL_ID, events_of, loaded, open_sim, snapshot, write
from tests.simulation.environment.disk import SimCrash, SimDisk


@contextmanager
def knowing_only_version_1() -> Iterator[None]:
    """An older OnceMQ."""
    with (
        patch.object(layout, "JOURNAL_VERSION", 1),
        patch.object(meta, "JOURNAL_VERSION", 1),
        patch.object(snapshot_module, "SNAPSHOT_VERSION", 1),
    ):
        yield


def journal_of_version_1(seed: int = 1) -> SimDisk:
    disk = SimDisk(Random(seed))
    with knowing_only_version_1():
        journal, _ = loaded(disk)
        write(journal, events=b"one")
        snapshot(journal)
        write(journal, events=b"two")
        journal.close()
    disk.kill()
    return disk


def version_of(disk: SimDisk, path: str) -> int:
    return int.from_bytes(disk.open(path).read(8, 4), "little")


def is_refused_by_version_1(disk: SimDisk) -> bool:
    """Any other refusal is an error, and so is what it can't have understood."""
    with knowing_only_version_1():
        try:
            _, groups = loaded(disk)
        except errors.JournalVersion:
            return True
        finally:
            disk.kill()
        assert b"newer" not in events_of(groups)
        return False


def test_a_journal_of_version_1_is_read_and_refused_by_version_1_from_then_on() -> None:
    disk = journal_of_version_1()
    assert not is_refused_by_version_1(disk)
    journal, groups = loaded(disk)
    assert events_of(groups) == [b"two"]
    disk.power_loss()
    assert version_of(disk, "journal.meta") == JOURNAL_VERSION
    assert is_refused_by_version_1(disk)
    journal, groups = loaded(disk)
    assert events_of(groups) == [b"two"]
    assert journal.journal_id == JOURNAL_ID


def test_segments_of_version_1_are_not_rewritten() -> None:
    disk = journal_of_version_1()
    journal, _ = loaded(disk)
    write(journal, events=b"newer")
    [old] = [name for name in disk.list("snapshots") if name.isdigit()]
    snapshot(journal)
    [_, new] = [name for name in disk.list("snapshots") if name.isdigit()]
    assert version_of(disk, f"snapshots/{old}") == 1
    assert version_of(disk, f"snapshots/{new}") == SNAPSHOT_VERSION
    assert version_of(disk, "segments/000000000001") == 1
    journal.next_slot(journal.next_slot(0).free_bytes + 1)
    assert version_of(disk, "segments/000000000002") == JOURNAL_VERSION


def test_a_journal_that_is_refused_keeps_its_version() -> None:
    disk = journal_of_version_1()
    disk.damage("segments/000000000001", 2 * 512 + 64, b"rot")
    with pytest.raises(errors.JournalCorrupt):
        loaded(disk)
    assert version_of(disk, "journal.meta") == 1


def test_checking_a_journal_keeps_its_version() -> None:
    disk = journal_of_version_1()
    assert check(disk).is_good
    assert version_of(disk, "journal.meta") == 1


def test_a_disk_that_is_too_full_to_raise_the_version_changes_nothing() -> None:
    disk = journal_of_version_1()
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(errors.JournalError, match=f"from 1 to {JOURNAL_VERSION}"):
        loaded(disk)
    disk.kill()
    assert not is_refused_by_version_1(disk)
    disk.capacity_bytes += 4096
    assert events_of(loaded(disk)[1]) == [b"two"]


#: Operations from opening a journal of version 1 to a group of this version in it.
OPERATIONS = 16


def crash_while_raising(seed: int, operations: int, skip: frozenset[str] = frozenset()) -> None:
    """Crash anywhere on the way; then continue, and lose power. Raise what went wrong."""
    disk = journal_of_version_1(seed)
    disk.skip_labels |= skip
    disk.crash_after(operations)
    with suppress(SimCrash):
        journal, _ = loaded(disk)
        write(journal, events=b"newer")
    if seed % 2:
        disk.kill()
    else:
        disk.power_loss()
    journal, groups = loaded(disk)
    assert events_of(groups) in ([b"two"], [b"two", b"newer"])
    write(journal, events=b"newer")
    disk.power_loss()
    assert is_refused_by_version_1(disk)
    assert events_of(loaded(disk)[1]) == [*events_of(groups), b"newer"]


def test_a_crash_while_the_version_is_raised_does_no_damage() -> None:
    for operations in range(OPERATIONS):
        for seed in range(40):
            crash_while_raising(seed, operations)


def test_version_1_never_reads_what_it_does_not_know() -> None:
    for operations in range(OPERATIONS):
        for seed in range(20):
            disk = journal_of_version_1(seed)
            disk.crash_after(operations)
            with suppress(SimCrash):
                journal, _ = loaded(disk)
                write(journal, events=b"newer")
            disk.power_loss()
            is_refused_by_version_1(disk)
            assert events_of(loaded(disk)[1])[:1] == [b"two"]


@pytest.mark.parametrize("label", ["meta", "meta name"])
def test_an_omitted_sync_while_the_version_is_raised_is_detected(label: str) -> None:
    for operations in range(OPERATIONS):
        for seed in range(40):
            try:
                crash_while_raising(seed, operations, frozenset({label}))
            except (AssertionError, errors.JournalError):
                return
    pytest.fail(f"no damage without the sync {label!r}")


def test_a_kill_before_a_new_journals_name_is_durable_does_no_damage() -> None:
    for operations in range(60):
        disk = SimDisk(Random(operations))
        disk.crash_after(operations)
        with suppress(SimCrash):
            open_sim(disk)
        disk.kill()
        journal, _ = loaded(disk)
        write(journal, events=b"first")
        disk.power_loss()
        assert events_of(loaded(disk)[1]) == [b"first"]
