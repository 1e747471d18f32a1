"""Random lives with crashes; and the same with one sync left out, which must be noticed."""

from __future__ import annotations

import pytest
from tests.journal.model import Damage, Life

#: Every sync that a promise rests on, and a seed from which on damage shows soon.
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
            Life(seed).run(120)
        except Damage as damage:
            pytest.fail(f"seed {seed}: {damage}")


@pytest.mark.parametrize("label", SYNCS)
def test_leaving_out_a_sync_is_noticed(label: str) -> None:
    for seed in range(SYNCS[label], SYNCS[label] + 1500):
        try:
            Life(seed, frozenset({label})).run(120)
        except Damage:
            return
    pytest.fail(f"no damage without the sync {label!r}")


def test_every_sync_is_among_those_that_are_left_out() -> None:
    labels: set[str] = set()
    for seed in range(20):
        life = Life(seed)
        life.run(120)
        labels |= set(life.disk.labels)
    assert {label for label in labels if not label.startswith("speed: ")} == set(SYNCS)


def test_syncs_for_speed_alone_can_be_left_out() -> None:
    for seed in range(50):
        life = Life(seed, frozenset({"speed: zero-filled file"}))
        life.run(120)
        assert life.disk.faults["sync skipped"]
