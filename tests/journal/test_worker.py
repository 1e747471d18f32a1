"""Background work of a journal in its thread: what pauses for the syncs of groups, and when it does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

import pytest

from oncemq.journal import worker as worker_module
from oncemq.journal.files.allocation import FILL_CHUNK_BYTES, zero_fill
from oncemq.journal.worker import StepWorker, ThreadWorker
from tests.journal.rig import new_journal, write
from tests.simulation.environment.disk import SimDisk

QUARTER = b"q" * 8_000


class Hurry:
    """Counts the pauses, instead of making them."""

    def __init__(self) -> None:
        self.pauses = 0

    def wait(self, _timeout_s: float) -> None:
        self.pauses += 1

    def set(self) -> None: ...

    def clear(self) -> None: ...


def _steps(count: int) -> Iterator[None]:
    for _ in range(count):
        time.sleep(0.001)
        yield


@pytest.mark.parametrize(("gently", "pauses"), [(True, 5), (False, 0)])
def test_only_a_gentle_task_pauses_after_each_step(gently: bool, pauses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = ThreadWorker()
    hurry = Hurry()
    monkeypatch.setattr(worker, "_in_hurry", hurry)
    task = worker.start(_steps(5), "five steps", gently=gently)
    worker.wait(task)
    worker.close()
    assert hurry.pauses == pauses


def test_nobody_waits_for_the_pauses_of_a_gentle_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_PAUSE_PER_STEP", 1_000_000)
    monkeypatch.setattr(worker_module, "_PAUSE_S_MAX", 3_600.0)
    worker = ThreadWorker()
    first = worker.start(_steps(3), "first", gently=True)
    second = worker.start(_steps(3), "second", gently=True)
    worker.wait(second)
    assert first.done
    assert second.done
    third = worker.start(_steps(3), "third", gently=True)
    worker.close()
    assert third.done


def test_a_spare_is_synced_a_megabyte_at_a_time_so_that_syncs_of_groups_do_not_wait_for_all_of_it() -> None:
    disk = SimDisk(Random(1))
    for _ in zero_fill(disk, "spare", 3 * FILL_CHUNK_BYTES, sync_bytes=FILL_CHUNK_BYTES):
        pass
    assert disk.labels["speed: zero-filled file"] == 3


class HurriedWorker(StepWorker):
    def __init__(self) -> None:
        super().__init__()
        self.hurries = 0

    def hurry(self) -> None:
        self.hurries += 1


def test_a_spare_is_created_without_pauses_once_the_active_segment_is_half_full() -> None:
    worker = HurriedWorker()
    _, journal = new_journal(1, worker)
    for _ in range(3):
        write(journal, [QUARTER])
        journal.maintain()
    assert worker.hurries == 0, "all spares exist"
    write(journal, [QUARTER])
    journal.maintain()
    assert worker.tasks, "the second segment was begun, and a spare is missing"
    write(journal, [QUARTER])
    assert worker.hurries == 0
    for _ in range(2):
        write(journal, [QUARTER])
    assert worker.hurries == 1
