"""`journal cut`: after every cut that is accepted, a broker starts and has all messages of the earlier state."""

from __future__ import annotations

import re
from random import Random

import pytest

from oncemq.broker.offline.check import check
from oncemq.broker.offline.cut import cut, first_position
from oncemq.disk.contract import Disk
from oncemq.disk.overlay import OverlayDisk
from oncemq.journal.files.export import export
from oncemq.journal.files.layout import segment_numbers, segment_path
from oncemq.protocol import errors
from tests.broker.offline.test_check import SEGMENT_BYTES, history, journal_on, zero
from tests.broker.rig import Rig
from tests.simulation.environment.disk import SimDisk


class Positions:
    """Takes the positions of all groups from an export."""

    def __init__(self) -> None:
        self.positions: list[int] = []

    def write(self, data: bytes) -> None:
        if b'"kind":"group"' in data:
            self.positions.append(int(re.findall(rb'"position":(\d+)', data)[0]))


def positions_of(disk: SimDisk) -> list[int]:
    output = Positions()
    export(disk, output)
    return output.positions


def refusal_of(disk: Disk, position: int) -> errors.JournalError:
    with pytest.raises(errors.JournalError, match="can't be cut") as refused:
        cut(disk, position)
    return refused.value


def advice_of(disk: Disk, position: int) -> str:
    return refusal_of(disk, position).advice


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_works_after_every_cut_that_is_accepted(seed: int) -> None:
    before = history(seed)
    first = first_position(before)
    accepted = 0
    for position in Random(seed).sample(positions_of(before), 25):
        disk = OverlayDisk(before)
        if position < first:
            assert f"can be cut from position {first} on." in advice_of(disk, position)
            continue
        cut(disk, position)
        accepted += 1
        assert check(disk).is_good
        rig = Rig(journal_on(disk))
        rig.subscribe()
        rig.put(b"goes on")
        rig.broker.stop()
        assert check(disk).is_good
    assert 0 < accepted < 25


def test_the_position_that_is_named_can_be_cut() -> None:
    disk = history(1)
    first = first_position(disk)
    assert first > positions_of(disk)[0]
    cut(disk, first)
    assert check(disk).is_good


@pytest.mark.parametrize("seed", range(3))
def test_the_position_that_is_named_can_be_cut_although_an_older_segment_is_damaged(seed: int) -> None:
    named = 0
    for number in segment_numbers(history(seed))[:-1]:
        disk = history(seed)
        zero(disk, segment_path(number), Random(seed))
        advice = advice_of(disk, positions_of(disk)[0])
        if found := re.match(
            r"The journal can be cut from position (\d+) on(, with `--accept-loss`: \d+ messages)?", advice
        ):
            cut(disk, int(found[1]), accepts_loss=bool(found[2]))
            assert not check(disk).refusal
            named += 1
    assert named


def test_a_refusal_says_once_what_to_do() -> None:
    disk = history(1)
    position = check(disk).last_groups[-3].position
    disk.damage(segment_path(position // SEGMENT_BYTES), position % SEGMENT_BYTES + 20, b"rot")
    refused = refusal_of(disk, positions_of(disk)[-1])
    assert "is damaged, but a good one" in refused.text
    assert errors.JournalCorrupt.folder_advice not in refused.text + check(disk).refusal
    assert refused.advice.startswith("Cut at the first damage")
    assert refused.advice not in refused.text


def test_an_accepted_loss_leaves_a_broker_that_serves_the_rest() -> None:
    disk = history(2)
    first = first_position(disk)
    position = [position for position in positions_of(disk) if position < first][-1]
    with pytest.raises(errors.JournalError, match="can't be read"):
        cut(disk, position)
    cut(disk, position, accepts_loss=True)
    report = check(disk)
    assert not report.refusal
    assert report.lost_messages
    rig = Rig(journal_on(disk))
    assert rig.broker.counters["extents_missing"]
    rig.rounds(3)
    rig.broker.stop()


def test_a_refused_cut_changes_nothing() -> None:
    disk = history(1)
    report = check(disk)
    with pytest.raises(errors.JournalError):
        cut(disk, positions_of(disk)[0])
    assert check(disk) == report


def test_a_cut_at_damage_makes_a_journal_usable_that_a_broker_refuses() -> None:
    disk = history(1)
    position = check(disk).last_groups[-3].position
    disk.damage(segment_path(position // SEGMENT_BYTES), position % SEGMENT_BYTES + 20, b"rot")
    assert "is damaged" in check(disk).refusal
    assert "first damage" in advice_of(disk, positions_of(disk)[-1])
    cut(disk, position)
    assert check(disk).is_good
