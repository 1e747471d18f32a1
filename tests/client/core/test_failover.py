"""How the core treats a standby, and a broker that was replaced."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from oncemq.client.outbox.file import OutboxFile
from oncemq.protocol import errors
from oncemq.protocol.commands import Get, Health, Hello
from oncemq.protocol.replies import HealthReply, HelloReply, NotNow, Refusal
from tests.client.core.rig import CoreRig, stored

STANDBY = NotNow("STANDBY", "it waits; tcp://127.0.0.1:5555 is active")


def hello_of(term: int, *, epoch: int = 1, last_number: int = 0) -> HelloReply:
    return HelloReply(epoch, last_number, 64, (), "broker", term=term)


def greet(rig: CoreRig, term: int, *, last_number: int = 0) -> None:
    [request] = rig.sent()
    assert isinstance(request.commands[-1], Hello)
    rig.answer(request, hello_of(term, last_number=last_number))


def test_a_standby_is_left_for_the_next_address_at_once() -> None:
    rig = CoreRig()
    pending = rig.put()
    rig.sent()
    rig.answer_last(STANDBY)
    assert rig.core.next_deadline_ms() == rig.now_ms
    assert rig.sent() == []
    assert rig.core.check(rig.now_ms)
    rig.resume(last_number=0)
    assert rig.numbers() == [1]
    rig.answer_last(stored(0))
    assert pending.done


def test_two_standbys_are_not_asked_in_a_spin() -> None:
    rig = CoreRig()
    rig.put()
    reconnects = 0
    for _ in range(1000):
        for request in rig.sent():
            rig.answer(request, STANDBY)
        reconnects += rig.pass_ms(1.0)
    assert reconnects == 10


def test_what_was_in_flight_at_a_broker_that_became_a_standby_is_sent_to_the_next_one() -> None:
    rig = CoreRig()
    rig.greet()
    rig.put(b"0")
    rig.put(b"1")
    [request] = rig.sent()
    rig.answer(request, STANDBY, STANDBY)
    assert rig.core.check(rig.now_ms)
    rig.resume(last_number=1, verdicts=((1, stored(0)),))
    assert rig.numbers() == [2]


def test_a_late_word_of_a_standby_that_was_left_changes_nothing() -> None:
    rig = CoreRig()
    rig.put()
    [first] = rig.sent()
    assert rig.pass_ms(1000)
    rig.resume(last_number=0)
    assert rig.numbers() == [1]
    rig.answer(first, STANDBY)
    assert not rig.core.check(rig.now_ms)
    assert rig.core.discarded_count == 1


def test_standbys_alone_end_a_caller_s_patience_and_say_so() -> None:
    rig = CoreRig(give_up_ms=2000)
    put, greeting, asked = rig.put(), rig.core.greet(), rig.core.ask(Health())
    for _ in range(30):
        for request in rig.sent():
            rig.answer(request, *[STANDBY] * len(request.commands))
        rig.pass_ms(100)
    for pending in (put, greeting, asked):
        with pytest.raises(errors.Standby, match="is active"):
            pending.result()


def test_a_client_without_callers_does_not_look_for_the_active_broker() -> None:
    rig = CoreRig(give_up_ms=50)
    pending = rig.put()
    rig.sent()
    rig.answer_last(STANDBY)
    rig.pass_ms(100)
    rig.sent()
    rig.answer_last(STANDBY)
    assert pending.done
    assert rig.core.next_deadline_ms() == float("inf")
    assert rig.sent() == []
    rig.core.ask(Health())
    assert rig.pass_ms(100)
    assert Health() in rig.commands()


def test_time_outs_between_standbys_do_not_use_up_the_tries() -> None:
    rig = CoreRig(timeout_ms=100, tries=3, give_up_ms=5000)
    pending = rig.put()
    for _ in range(10):
        rig.sent()
        assert rig.pass_ms(100), "one address is silent"
        rig.sent()
        rig.answer_last(STANDBY)
        assert rig.pass_ms(100), "the other one waits"
    assert not pending.done


def test_a_get_that_has_waited_for_long_still_has_its_patience_for_a_take_over() -> None:
    rig = CoreRig(timeout_ms=1000, give_up_ms=3000)
    rig.greet()
    pending = rig.core.ask(Get(5, "kitchen", 1, 0, 1000, wait_ms=20_000))
    rig.sent()
    assert rig.pass_ms(21_000)
    for request in rig.sent():
        rig.answer(request, STANDBY)
    assert not pending.done
    assert rig.pass_ms(3000)
    for request in rig.sent():
        rig.answer(request, STANDBY)
    assert pending.done


def test_a_hello_of_a_lower_term_counts_as_no_answer() -> None:
    rig = CoreRig()
    pending = rig.put()
    greet(rig, 2)
    rig.sent()
    assert rig.core.term == 2
    assert rig.pass_ms(1000)
    greet(rig, 1)
    assert rig.core.check(rig.now_ms), "it goes on to the next address"
    assert not pending.done
    greet(rig, 3)
    assert rig.core.term == 3
    assert rig.numbers() == [1]


def test_where_a_standby_may_take_over_nothing_is_asked_before_the_hello_is_answered() -> None:
    rig = CoreRig()
    rig.core.greet()
    greet(rig, 2)
    rig.core.ask(Health())
    assert rig.commands() == [Health()]
    assert rig.pass_ms(1000)
    [request] = rig.sent()
    assert isinstance(request.commands[0], Hello)
    rig.answer(request, hello_of(1))
    assert rig.core.check(rig.now_ms)
    [request] = rig.sent()
    rig.answer(request, hello_of(2))
    assert rig.commands() == [Health()]


def test_the_question_of_an_expired_anonymous_session_waits_for_a_new_hello() -> None:
    rig = CoreRig(name="anonymous", anonymous=True, renewed=("another", 9))
    rig.core.greet()
    greet(rig, 2)
    asked = rig.core.ask(Health())
    rig.sent()
    assert rig.pass_ms(1000)
    rig.sent()
    rig.answer_last(Refusal("SESSION_UNKNOWN", "expired"))
    greet(rig, 2)
    assert rig.commands() == [Health()]
    assert not asked.done


def test_the_probe_of_an_outbox_leaves_a_standby_and_a_broker_of_a_lower_term(tmp_path: Path) -> None:
    with closing(OutboxFile.open(tmp_path / "outbox")) as outbox:
        rig = CoreRig(outbox=outbox)
        rig.put()
        greet(rig, 2)
        assert rig.numbers() == [1]
    with closing(OutboxFile.open(tmp_path / "outbox")) as outbox:
        rig = CoreRig(outbox=outbox)
        [probe] = rig.sent()
        assert len(probe.commands) == 2
        rig.answer(probe, STANDBY, STANDBY)
        assert rig.core.check(rig.now_ms)
        [probe] = rig.sent()
        health = HealthReply("1", "broker", "memory:", 0, 0, 0, 0, 0, {})
        rig.answer(probe, health, Refusal("FENCED", "another epoch"))
        greet(rig, 2)
        assert rig.numbers() == [1]
        assert rig.pass_ms(1000)
        greet(rig, 1)
        assert rig.core.check(rig.now_ms)
        greet(rig, 2)
        assert rig.numbers() == [1]


def test_a_put_ends_while_a_broker_changes_between_active_and_standby() -> None:
    rig = CoreRig(timeout_ms=100, tries=5)
    rig.greet()
    put = rig.put()
    for _ in range(20):
        rig.core.ask(Health())
        for request in rig.sent():
            if isinstance(request.commands[0], Hello):
                rig.answer(request, HelloReply(1, 0, 64, (), "broker", 0, 1))
        rig.pass_ms(50)
        for request in rig.sent():
            if isinstance(request.commands[0], Health):
                rig.answer(request, STANDBY)
        rig.pass_ms(20)
    assert isinstance(put.error, errors.Standby | errors.BrokerAway)


def test_a_connection_that_is_renewed_while_no_caller_waits_begins_with_a_hello() -> None:
    rig = CoreRig(tries=2, timeout_ms=1000.0)
    rig.core.greet()
    greet(rig, 2)
    get = rig.core.ask(Get(5, "kitchen", 1, 0, 1000, 0))
    offset = 0
    while not get.done:
        # All other commands are answered, so the connection counts as usable.
        rig.put()
        for request in rig.sent():
            if not isinstance(request.commands[0], Get):
                rig.answer(request, stored(offset))
                offset += 1
        assert not rig.pass_ms(400.0)
    assert isinstance(get.error, errors.BrokerAway)
    assert rig.core.is_idle
    rig.core.connection_lost(rig.now_ms)
    rig.core.ask(Get(5, "kitchen", 1, 0, 1000, 0))
    rig.put()
    [command] = rig.commands()
    assert isinstance(command, Hello)
