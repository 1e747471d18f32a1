"""Puts of one publisher, put back into their order."""

from __future__ import annotations

import random

import pytest

from oncemq.gateways.udp.extended.packets import Answer, Done, Put, Refused
from oncemq.gateways.udp.extended.put_order import WAITING_BYTES_MAX, Intake


def put(number: int, content: bytes = b"x") -> Put:
    return Put(1, 1, number, False, "topic", content)


def numbers(run: list[Put]) -> list[int]:
    return [put.number for put in run]


def test_what_is_next_goes_to_the_broker_with_all_that_follows_it() -> None:
    intake = Intake(8, 0)
    for number in (3, 2):
        assert intake.take(put(number)) is None
    assert not intake.has_run
    intake.take(put(1))
    run = intake.begin_run()
    assert numbers(run) == [1, 2, 3]
    intake.take(put(4))
    assert intake.begin_run() == []
    for number in (1, 2, 3):
        intake.decided(Done(number, number + 10))
    intake.end_run(run)
    assert numbers(intake.begin_run()) == [4]


def test_what_was_decided_is_answered_again() -> None:
    intake = Intake(8, 5, [Done(4, 40), Refused(5, "NO", "no")])
    assert intake.take(put(4)) == Done(4, 40)
    assert intake.take(put(5)) == Refused(5, "NO", "no")
    assert intake.take(put(3)) is None
    assert len(intake) == 0


def test_what_was_not_decided_may_come_again() -> None:
    intake = Intake(8, 0)
    for number in (1, 2, 3):
        intake.take(put(number))
    run = intake.begin_run()
    intake.decided(Done(1, 0))
    intake.end_run(run)
    assert len(intake) == 0
    assert intake.take(put(2)) is None
    assert numbers(intake.begin_run()) == [2]


def test_what_lies_beyond_the_window_or_is_too_much_is_dropped() -> None:
    intake = Intake(8, 0)
    assert intake.take(put(9)) is None
    assert len(intake) == 0
    for number in range(2, 9):
        intake.take(put(number, b"x" * 60_000))
    assert len(intake) == WAITING_BYTES_MAX // 60_000 + 1
    intake.take(put(1, b"x" * 60_000))
    assert intake.has_run


@pytest.mark.parametrize("seed", range(30))
def test_each_number_is_decided_once_and_in_order_whatever_comes(seed: int) -> None:
    chance = random.Random(seed)
    intake = Intake(8, 0)
    stored: list[int] = []
    answers: dict[int, Answer] = {}
    for _ in range(4000):
        base = len(stored) + 1
        number = chance.randrange(max(1, base - 10), base + 12)
        known = intake.take(put(number))
        assert known is None or known == answers[number]
        run = intake.begin_run() if chance.random() < 0.5 else []
        for each in run[: chance.randrange(len(run) + 1)]:
            stored.append(each.number)
            answers[each.number] = Done(each.number, len(stored))
            intake.decided(answers[each.number])
        if run:
            intake.end_run(run)
    assert stored == list(range(1, len(stored) + 1))
    assert len(stored) > 100
