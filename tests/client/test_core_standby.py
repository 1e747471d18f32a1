"""What the sans-I/O core makes of a standby, and of a broker whose place was taken."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from oncemq.client.outbox.file import OutboxFile
from oncemq.protocol import errors
from oncemq.protocol.commands import Get, Health, Hello
from oncemq.protocol.replies import HealthReply, HelloReply, NotNow, Refusal
from tests.client.scripted import Desk, stored

STANDBY = NotNow("STANDBY", "it waits; tcp://127.0.0.1:5555 is active")


def hello_of(term: int, *, epoch: int = 1, last_number: int = 0) -> HelloReply:
    return HelloReply(epoch, last_number, 64, (), "broker", term=term)


def greet(desk: Desk, term: int, *, last_number: int = 0) -> None:
    [request] = desk.sent()
    assert isinstance(request.commands[-1], Hello)
    desk.answer(request, hello_of(term, last_number=last_number))


def test_a_standby_is_left_for_the_next_address_at_once() -> None:
    desk = Desk()
    pending = desk.put()
    desk.sent()
    desk.answer_last(STANDBY)
    assert desk.core.next_deadline_ms() == desk.now_ms
    assert desk.sent() == []
    assert desk.core.check(desk.now_ms)
    desk.resume(last_number=0)
    assert desk.numbers() == [1]
    desk.answer_last(stored(0))
    assert pending.done


def test_two_standbys_are_not_asked_in_a_spin() -> None:
    desk = Desk()
    desk.put()
    reconnects = 0
    for _ in range(1000):
        for request in desk.sent():
            desk.answer(request, STANDBY)
        reconnects += desk.pass_ms(1.0)
    assert reconnects == 10


def test_what_was_in_flight_at_a_broker_that_became_a_standby_is_sent_to_the_next_one() -> None:
    desk = Desk()
    desk.greet()
    desk.put(b"0")
    desk.put(b"1")
    [request] = desk.sent()
    desk.answer(request, STANDBY, STANDBY)
    assert desk.core.check(desk.now_ms)
    desk.resume(last_number=1, verdicts=((1, stored(0)),))
    assert desk.numbers() == [2]


def test_a_late_word_of_a_standby_that_was_left_changes_nothing() -> None:
    desk = Desk()
    desk.put()
    [first] = desk.sent()
    assert desk.pass_ms(1000)
    desk.resume(last_number=0)
    assert desk.numbers() == [1]
    desk.answer(first, STANDBY)
    assert not desk.core.check(desk.now_ms)
    assert desk.core.discarded_count == 1


def test_standbys_alone_end_a_caller_s_patience_and_say_so() -> None:
    desk = Desk(give_up_ms=2000)
    put, greeting, asked = desk.put(), desk.core.greet(), desk.core.ask(Health())
    for _ in range(30):
        for request in desk.sent():
            desk.answer(request, *[STANDBY] * len(request.commands))
        desk.pass_ms(100)
    for pending in (put, greeting, asked):
        with pytest.raises(errors.Standby, match="is active"):
            pending.result()


def test_a_client_without_callers_does_not_look_for_the_active_broker() -> None:
    desk = Desk(give_up_ms=50)
    pending = desk.put()
    desk.sent()
    desk.answer_last(STANDBY)
    desk.pass_ms(100)
    desk.sent()
    desk.answer_last(STANDBY)
    assert pending.done
    assert desk.core.next_deadline_ms() == float("inf")
    assert desk.sent() == []
    desk.core.ask(Health())
    assert desk.pass_ms(100)
    assert Health() in desk.commands()


def test_time_outs_between_standbys_do_not_use_up_the_tries() -> None:
    desk = Desk(timeout_ms=100, tries=3, give_up_ms=5000)
    pending = desk.put()
    for _ in range(10):
        desk.sent()
        assert desk.pass_ms(100), "one address is silent"
        desk.sent()
        desk.answer_last(STANDBY)
        assert desk.pass_ms(100), "the other one waits"
    assert not pending.done


def test_a_get_that_has_waited_for_long_still_has_its_patience_for_a_take_over() -> None:
    desk = Desk(timeout_ms=1000, give_up_ms=3000)
    desk.greet()
    pending = desk.core.ask(Get(5, "kitchen", 1, 0, 1000, wait_ms=20_000))
    desk.sent()
    assert desk.pass_ms(21_000)
    for request in desk.sent():
        desk.answer(request, STANDBY)
    assert not pending.done
    assert desk.pass_ms(3000)
    for request in desk.sent():
        desk.answer(request, STANDBY)
    assert pending.done


def test_a_hello_of_a_lower_term_counts_as_no_answer() -> None:
    desk = Desk()
    pending = desk.put()
    greet(desk, 2)
    desk.sent()
    assert desk.core.term == 2
    assert desk.pass_ms(1000)
    greet(desk, 1)
    assert desk.core.check(desk.now_ms), "it goes on to the next address"
    assert not pending.done
    greet(desk, 3)
    assert desk.core.term == 3
    assert desk.numbers() == [1]


def test_where_a_standby_may_take_over_nothing_is_asked_before_the_hello_is_answered() -> None:
    desk = Desk()
    desk.core.greet()
    greet(desk, 2)
    desk.core.ask(Health())
    assert desk.commands() == [Health()]
    assert desk.pass_ms(1000)
    [request] = desk.sent()
    assert isinstance(request.commands[0], Hello)
    desk.answer(request, hello_of(1))
    assert desk.core.check(desk.now_ms)
    [request] = desk.sent()
    desk.answer(request, hello_of(2))
    assert desk.commands() == [Health()]


def test_the_question_of_an_expired_anonymous_session_waits_for_a_new_hello() -> None:
    desk = Desk(name="anonymous", anonymous=True, renewed=("another", 9))
    desk.core.greet()
    greet(desk, 2)
    asked = desk.core.ask(Health())
    desk.sent()
    assert desk.pass_ms(1000)
    desk.sent()
    desk.answer_last(Refusal("SESSION_UNKNOWN", "expired"))
    greet(desk, 2)
    assert desk.commands() == [Health()]
    assert not asked.done


def test_the_probe_of_an_outbox_leaves_a_standby_and_a_broker_of_a_lower_term(tmp_path: Path) -> None:
    with closing(OutboxFile.open(tmp_path / "outbox")) as outbox:
        desk = Desk(outbox=outbox)
        desk.put()
        greet(desk, 2)
        assert desk.numbers() == [1]
    with closing(OutboxFile.open(tmp_path / "outbox")) as outbox:
        desk = Desk(outbox=outbox)
        [probe] = desk.sent()
        assert len(probe.commands) == 2
        desk.answer(probe, STANDBY, STANDBY)
        assert desk.core.check(desk.now_ms)
        [probe] = desk.sent()
        health = HealthReply("1", "broker", "memory:", 0, 0, 0, 0, 0, {})
        desk.answer(probe, health, Refusal("FENCED", "another epoch"))
        greet(desk, 2)
        assert desk.numbers() == [1]
        assert desk.pass_ms(1000)
        greet(desk, 1)
        assert desk.core.check(desk.now_ms)
        greet(desk, 2)
        assert desk.numbers() == [1]
