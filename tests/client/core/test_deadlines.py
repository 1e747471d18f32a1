"""Every call ends: a broker that answers something else, or only hellos, does not keep it waiting."""

from __future__ import annotations

import pytest

from oncemq.client.core.commands.wire import LOCAL, WireBytes
from oncemq.protocol import errors
from oncemq.protocol.commands import Health, Hello, Numbered, Topics, Void
from oncemq.protocol.replies import Done, HelloReply, NotNow, TopicsReply
from tests.client.core.rig import CoreRig, stored

_MIB = 1024 * 1024


def test_a_put_ends_although_each_hello_is_answered() -> None:
    rig = CoreRig(timeout_ms=100, tries=3)
    rig.greet()
    pending = rig.put()
    for _ in range(3):
        assert not pending.done
        rig.sent()
        assert rig.pass_ms(100)
        if not pending.done:
            rig.resume(last_number=0)
    with pytest.raises(errors.BrokerAway, match="has not answered"):
        pending.result()


def test_a_put_ends_within_its_time_although_hellos_are_answered_late() -> None:
    rig = CoreRig(timeout_ms=100, tries=5)
    rig.greet()
    pending = rig.put()
    started_ms = rig.now_ms
    for _ in range(5):
        rig.sent()
        assert rig.pass_ms(100)
        if not pending.done:
            rig.sent()
            assert not rig.pass_ms(90)
            rig.answer_last(HelloReply(1, 0, 64, (), "broker"))
        else:
            break
    assert rig.now_ms - started_ms <= 7 * 100


def test_a_put_ends_although_other_commands_are_answered() -> None:
    rig = CoreRig(timeout_ms=100, tries=3)
    rig.greet()
    pending = rig.put()
    rig.sent()
    for _ in range(12):
        rig.core.ask(Topics())
        for request in rig.sent():
            if isinstance(request.commands[0], Topics):
                rig.answer(request, TopicsReply((), ""))
            elif isinstance(request.commands[0], Hello):
                rig.answer(request, HelloReply(1, 0, 64, (), "broker"))
        rig.pass_ms(50)
    with pytest.raises(errors.BrokerAway):
        pending.result()


def test_a_put_behind_commands_that_were_given_up_ends() -> None:
    rig = CoreRig(timeout_ms=100, tries=2, window=1)
    rig.greet(window=1)
    rig.put()
    rig.sent()
    behind = rig.put()
    for _ in range(20):
        rig.core.ask(Topics())
        for request in rig.sent():
            if isinstance(request.commands[0], Topics):
                rig.answer(request, TopicsReply((), ""))
            elif isinstance(request.commands[0], Hello):
                rig.answer(request, HelloReply(1, 0, 1, (), "broker"))
        rig.pass_ms(50)
    assert behind.done


def test_a_command_that_others_give_up_does_not_renew_the_time_limit() -> None:
    rig = CoreRig(timeout_ms=100, tries=3, window=1)
    rig.greet(window=1)
    pending = rig.put()
    for _ in range(3):
        rig.sent()
        other = rig.put()
        assert rig.pass_ms(100)
        rig.core.give_up(other, errors.ClientClosed("not wanted"))
        if not pending.done:
            rig.resume(last_number=0)
    assert isinstance(pending.error, errors.BrokerAway)


def test_each_answer_to_a_numbered_command_gives_the_next_one_its_full_time() -> None:
    rig = CoreRig(timeout_ms=100, tries=3, request_commands_max=1)
    rig.greet()
    pendings = [rig.put() for _ in range(5)]
    for number, pending in enumerate(pendings, 1):
        for _ in range(2):
            rig.sent()
            assert rig.pass_ms(100)
            rig.resume(last_number=number - 1)
        first = next(request for request in rig.sent() if request.commands[0].number == number)  # type: ignore[union-attr]
        rig.answer(first, stored(number))
        assert pending.result() == stored(number)


def test_an_idle_core_rests_after_a_command_was_given_up() -> None:
    rig = CoreRig(timeout_ms=100, tries=1)
    rig.greet()
    pending = rig.put()
    rig.sent()
    rig.pass_ms(100)
    assert pending.done
    assert rig.sent() == []
    assert rig.core.next_deadline_ms() == float("inf")


def test_a_query_after_broker_away_waits_until_the_outcome_is_final() -> None:
    rig = CoreRig(timeout_ms=100, tries=1)
    rig.greet()
    put = rig.put()
    rig.sent()
    rig.pass_ms(100)
    assert isinstance(put.error, errors.BrokerAway)
    query = rig.core.ask(Topics())
    rig.resume(last_number=0)
    [void] = rig.numbered()
    assert isinstance(void.operation, Void)
    rig.answer_last(Done())
    [request] = rig.sent()
    assert isinstance(request.commands[0], Topics)
    rig.answer(request, TopicsReply((), ""))
    assert query.result() == TopicsReply((), "")


def test_a_query_after_broker_away_ends_although_the_outcome_stays_open() -> None:
    rig = CoreRig(timeout_ms=100, tries=2)
    rig.greet()
    rig.put()
    for _ in range(2):
        rig.sent()
        rig.pass_ms(100)
    query = rig.core.ask(Topics())
    rig.resume(last_number=0)
    for _ in range(40):
        for request in rig.sent():
            assert isinstance(request.commands[0], Numbered)
            rig.answer(request, NotNow("OVERLOADED", "later"))
        rig.pass_ms(20)
    assert isinstance(query.error, errors.Overloaded)


def test_a_hello_of_another_epoch_is_not_an_answer() -> None:
    rig = CoreRig(timeout_ms=100, tries=2)
    rig.greet()
    put = rig.put()
    rig.sent()
    rig.pass_ms(100)
    rig.sent()
    rig.answer_last(HelloReply(9, 0, 64, (), "broker"))
    assert rig.pass_ms(100)
    assert isinstance(put.error, errors.BrokerAway)


# The wire.


def test_a_large_request_is_not_overdue_while_the_wire_takes_it() -> None:
    rig = CoreRig(timeout_ms=1000, tries=2)
    rig.greet()
    put = rig.put(b"x" * (8 * _MIB))
    rig.sent()
    for megabytes in range(1, 8):
        assert not rig.pass_ms(1000, WireBytes(acked=megabytes * _MIB, received=100))
    rig.answer_last(stored(0))
    assert put.result() == stored(0)
    assert len(rig.requests) == 2


def test_a_stalled_wire_ends_the_attempt_after_its_timeout() -> None:
    rig = CoreRig(timeout_ms=1000, tries=2)
    rig.greet()
    rig.put(b"x" * (8 * _MIB))
    rig.sent()
    assert not rig.pass_ms(1000, WireBytes(acked=_MIB, received=100))
    assert rig.pass_ms(1000, WireBytes(acked=_MIB, received=100))


def test_a_small_request_that_has_arrived_is_overdue_after_its_timeout() -> None:
    rig = CoreRig(timeout_ms=1000, tries=2)
    rig.greet()
    rig.put()
    rig.sent()
    assert rig.pass_ms(1010, WireBytes(acked=100_000, received=100))


def test_a_request_whose_transfer_never_ends_is_given_up() -> None:
    rig = CoreRig(timeout_ms=1000, tries=3)
    rig.greet()
    put = rig.put(b"x" * (8 * _MIB))
    for _ in range(3):
        rig.sent()
        for kilobytes in range(1, 10):
            rig.pass_ms(1000, WireBytes(acked=kilobytes * 100_000, received=100))
        assert rig.pass_ms(1000, WireBytes(acked=900_000, received=100))
        if not put.done:
            rig.resume(last_number=0)
    assert isinstance(put.error, errors.BrokerAway)


def test_a_large_reply_is_not_overdue_while_it_arrives() -> None:
    rig = CoreRig(timeout_ms=1000, tries=2)
    rig.greet()
    query = rig.core.ask(Health())
    [request] = rig.sent()
    for megabytes in range(1, 8):
        assert not rig.pass_ms(1000, WireBytes(acked=500, received=megabytes * _MIB))
    rig.answer(request, Done())
    assert query.done


def test_replies_to_others_do_not_keep_a_command_waiting() -> None:
    rig = CoreRig(timeout_ms=1000, tries=2)
    rig.greet()
    put = rig.put()
    rig.sent()
    received = 500
    for _ in range(20):
        rig.core.ask(Topics())
        for request in rig.sent():
            if isinstance(request.commands[0], Topics):
                received += rig.answer(request, TopicsReply((), ""))
            elif isinstance(request.commands[0], Hello):
                rig.answer(request, HelloReply(1, 0, 64, (), "broker"))
        if rig.pass_ms(500, WireBytes(acked=received, received=received)):
            received = 500
    assert isinstance(put.error, errors.BrokerAway)


def test_without_counts_of_the_wire_a_large_request_has_time_for_its_bytes() -> None:
    rig = CoreRig(timeout_ms=1000, tries=2)
    rig.greet()
    put = rig.put(b"x" * (8 * _MIB))
    rig.sent()
    for _ in range(9):
        assert not rig.pass_ms(1000)
    rig.answer_last(stored(0))
    assert put.result() == stored(0)


def test_without_counts_of_the_wire_a_large_request_is_overdue_at_last() -> None:
    rig = CoreRig(timeout_ms=1000, tries=2)
    rig.greet()
    rig.put(b"x" * (8 * _MIB))
    rig.sent()
    rig.pass_ms(1000)
    assert rig.pass_ms(30_000)


def test_inside_a_machine_a_large_request_is_overdue_soon() -> None:
    rig = CoreRig(timeout_ms=1000, tries=2)
    rig.greet()
    rig.put(b"x" * (8 * _MIB))
    rig.sent()
    assert not rig.pass_ms(1000, LOCAL)
    assert rig.pass_ms(1000, LOCAL)
