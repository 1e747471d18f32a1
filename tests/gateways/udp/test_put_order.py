"""Restoring the order of one publisher's puts."""

from __future__ import annotations

import random

import pytest

from oncemq.gateways.udp.extended.packets import Answer, Done, Put, Refused
from oncemq.gateways.udp.extended.put_order import WAITING_BYTES_MAX, PutOrder, WaitingBytes


def put(number: int, content: bytes = b"x") -> Put:
    return Put(1, 1, number, False, "topic", content)


def numbers(run: list[Put]) -> list[int]:
    return [put.number for put in run]


def test_what_is_next_goes_to_the_broker_with_all_that_follows_it() -> None:
    order = PutOrder(8, 0)
    for number in (3, 2):
        assert order.add(put(number)) is None
    assert not order.has_run
    order.add(put(1))
    run = order.begin_run()
    assert numbers(run) == [1, 2, 3]
    order.add(put(4))
    assert order.begin_run() == []
    for number in (1, 2, 3):
        order.note_answer(Done(number, number + 10))
    order.end_run(run)
    assert numbers(order.begin_run()) == [4]


def test_what_was_decided_is_answered_again() -> None:
    order = PutOrder(8, 5, [Done(4, 40), Refused(5, "NO", "no")])
    assert order.add(put(4)) == Done(4, 40)
    assert order.add(put(5)) == Refused(5, "NO", "no")
    assert order.add(put(3)) is None
    assert len(order) == 0


def test_what_was_not_decided_may_come_again() -> None:
    order = PutOrder(8, 0)
    for number in (1, 2, 3):
        order.add(put(number))
    run = order.begin_run()
    order.note_answer(Done(1, 0))
    order.end_run(run)
    assert len(order) == 0
    assert order.add(put(2)) is None
    assert numbers(order.begin_run()) == [2]


def test_what_lies_beyond_the_window_or_is_too_much_is_dropped() -> None:
    order = PutOrder(8, 0)
    assert order.add(put(9)) is None
    assert len(order) == 0
    for number in range(2, 9):
        order.add(put(number, b"x" * 60_000))
    assert len(order) == WAITING_BYTES_MAX // 60_000 + 1
    order.add(put(1, b"x" * 60_000))
    assert order.has_run


@pytest.mark.parametrize("seed", range(30))
def test_each_number_is_decided_once_and_in_order_whatever_comes(seed: int) -> None:
    chance = random.Random(seed)
    order = PutOrder(8, 0)
    stored: list[int] = []
    answers: dict[int, Answer] = {}
    for _ in range(4000):
        base = len(stored) + 1
        number = chance.randrange(max(1, base - 10), base + 12)
        known = order.add(put(number))
        assert known is None or known == answers[number]
        run = order.begin_run() if chance.random() < 0.5 else []
        for each in run[: chance.randrange(len(run) + 1)]:
            stored.append(each.number)
            answers[each.number] = Done(each.number, len(stored))
            order.note_answer(answers[each.number])
        if run:
            order.end_run(run)
    assert stored == list(range(1, len(stored) + 1))
    assert len(stored) > 100


def test_puts_of_all_publishers_that_wait_have_a_common_limit() -> None:
    waiting_bytes = WaitingBytes(100)
    orders = [PutOrder(8, 0, (), waiting_bytes) for _ in range(3)]
    for order in orders:
        order.add(Put(0, 1, 2, False, "t", b"x" * 60))
    assert [len(order) for order in orders] == [1, 1, 0]
    # The put that is next is always taken.
    orders[2].add(Put(0, 1, 1, False, "t", b"x" * 60))
    assert len(orders[2]) == 1
    for order in orders:
        order.drop_waiting()
    assert waiting_bytes.total == 0
