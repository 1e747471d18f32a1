"""Random operations with crashes; and the same with one sync omitted, which must be detected."""

from __future__ import annotations

import pytest

from tests.journal.model import Damage, RandomRun

#: Every sync that a guarantee depends on, and a seed from which on damage is found soon.
SYNCS = {
    "group": 0,
    "segment name": 0,
    "segment head": 5,
    "segment head again": 632,
    "begun segment": 0,
    "meta": 2,
    "meta name": 1,
    "snapshot": 19,
    "snapshot name": 76,
    "last group again": 11,
    "copy of the last group": 320,
    "name of the last group's copy": 8,
    "cut bytes": 2,
    "cut name": 2,
}


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_everything_synced_survives_every_crash(first: int) -> None:
    for seed in range(first, first + 50):
        try:
            RandomRun(seed).run(120)
        except Damage as damage:
            pytest.fail(f"seed {seed}: {damage}")


@pytest.mark.parametrize("label", SYNCS)
def test_an_omitted_sync_is_detected(label: str) -> None:
    for seed in range(SYNCS[label], SYNCS[label] + 1500):
        try:
            RandomRun(seed, frozenset({label})).run(120)
        except Damage:
            return
    pytest.fail(f"no damage without the sync {label!r}")


def test_every_sync_is_among_those_that_are_omitted() -> None:
    labels: set[str] = set()
    for seed in range(20):
        run = RandomRun(seed)
        run.run(120)
        labels |= set(run.disk.labels)
    assert {label for label in labels if not label.startswith("speed: ")} == set(SYNCS)


def test_syncs_that_are_only_for_speed_can_be_omitted() -> None:
    for seed in range(50):
        run = RandomRun(seed, frozenset({"speed: zero-filled file"}))
        run.run(120)
        assert run.disk.faults["sync skipped"]
