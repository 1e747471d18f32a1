"""Gets that wait: what ends the waiting, and what they are told."""

from __future__ import annotations

import pytest

from oncemq.engine import commands as co
from oncemq.engine import replies as re
from oncemq.limits import Limits
from tests.broker.rig import Owner, Rig, code, expect, offsets


def _parked(rig: Rig, owner: Owner, wait_ms: int = 5_000) -> int:
    request = rig.post([owner.get(wait_ms=wait_ms)])
    rig.rounds()
    assert rig.answers() == {}, "there is nothing to get yet"
    return request


def test_a_waiting_get_is_answered_when_something_is_committed() -> None:
    rig = Rig()
    waiting = _parked(rig, rig.subscribe())
    command, payload = rig.put_command(b"one")
    rig.post([command], [payload], peer=b"writer")
    rig.story.clear()
    rig.rounds()
    assert offsets(rig.answers()[waiting][0][0]) == [0]
    assert rig.story[:2] == ["append", "sync"]


def test_a_put_to_another_topic_does_not_end_the_waiting() -> None:
    rig = Rig()
    _parked(rig, rig.subscribe())
    rig.subscribe("other", "somebody")
    rig.put(b"one", topic="other")
    assert len(rig.broker.waiting) == 1


def test_a_waiting_get_is_answered_when_its_time_is_over() -> None:
    rig = Rig()
    waiting = _parked(rig, rig.subscribe(), wait_ms=300)
    rig.rounds(forward_ms=299)
    assert rig.answers() == {}
    rig.rounds(forward_ms=1)
    assert offsets(rig.answers()[waiting][0][0]) == []
    assert len(rig.broker.waiting) == 0


def test_the_loop_wakes_up_when_a_wait_is_over() -> None:
    rig = Rig()
    _parked(rig, rig.subscribe(), wait_ms=40)
    rig.broker.housekeeping.next_look_ms = rig.clock.time_ms + 10_000
    assert 1 <= rig.broker.wait_ms() <= 40


def test_deleting_the_topic_ends_the_waiting() -> None:
    rig = Rig()
    waiting = _parked(rig, rig.subscribe())
    rig.post([rig.numbered(co.DeleteTopic("orders"))])
    rig.rounds()
    assert code(rig.answers()[waiting][0][0]) == "TOPIC_GONE"


def test_a_take_over_fences_the_one_who_waits() -> None:
    rig = Rig()
    waiting = _parked(rig, rig.subscribe())
    rig.post([rig.numbered(co.Open("orders", "kitchen"))])
    rig.rounds()
    assert code(rig.answers()[waiting][0][0]) == "FENCED"


def test_unsubscribing_ends_the_waiting() -> None:
    rig = Rig()
    owner = rig.subscribe()
    rig.do(co.Subscribe("orders", "another"))
    waiting = _parked(rig, owner)
    rig.post([rig.numbered(co.Unsubscribe("orders", "kitchen"))])
    rig.rounds()
    assert code(rig.answers()[waiting][0][0]) == "NOT_SUBSCRIBED"


def test_a_newer_get_replaces_a_parked_one() -> None:
    rig = Rig()
    owner = rig.subscribe()
    older = _parked(rig, owner)
    newer = rig.post([owner.get(wait_ms=5_000)])
    rig.rounds()
    assert offsets(rig.answers()[older][0][0]) == []
    assert len(rig.broker.waiting) == 1
    command, payload = rig.put_command(b"one")
    rig.post([command], [payload])
    rig.rounds()
    answered = rig.answers()
    assert offsets(answered[newer][0][0]) == [0]
    assert older not in answered


def test_the_ack_that_rides_on_a_waiting_get_counts_at_once() -> None:
    rig = Rig()
    owner = rig.subscribe()
    rig.put(b"one", b"two")
    rig.post([owner.get(2, wait_ms=5_000, ack=2)])
    rig.rounds()
    listed = expect(re.SubscriptionsReply, rig.ask(co.Subscriptions("orders")))
    assert [found.acked for found in listed.subscriptions] == [2]


def test_a_get_among_other_commands_does_not_wait() -> None:
    rig = Rig()
    owner = rig.subscribe()
    request = rig.post([owner.get(wait_ms=5_000), co.Topics()])
    rig.rounds()
    replies, _ = rig.answers()[request]
    assert offsets(replies[0]) == []


def test_readers_of_a_topic_wait_side_by_side() -> None:
    rig = Rig()
    rig.subscribe()
    requests = [rig.post([co.Read("orders", co.START_NEW, 1000, 5_000)], peer=b"%d" % peer) for peer in range(3)]
    rig.rounds()
    assert rig.answers() == {}
    command, payload = rig.put_command(b"one")
    rig.post([command], [payload])
    rig.rounds()
    answered = rig.answers()
    assert all(offsets(answered[request][0][0]) == [0] for request in requests)


def test_a_reader_who_waits_does_not_slip_into_a_topic_that_was_made_again() -> None:
    rig = Rig()
    rig.subscribe()
    waiting = rig.post([co.Read("orders", co.START_NEW, 1000, 5_000)], peer=b"reader")
    rig.rounds()
    request = [rig.numbered(co.DeleteTopic("orders")), rig.numbered(co.CreateTopic("orders"))]
    rig.post(request)
    rig.rounds()
    assert code(rig.answers()[waiting][0][0]) == "TOPIC_GONE"


def test_a_stop_answers_those_who_wait() -> None:
    rig = Rig()
    waiting = _parked(rig, rig.subscribe())
    rig.broker.stop()
    reply = rig.answers()[waiting][0][0]
    assert isinstance(reply, re.NotNow)
    assert code(reply) == "STOPPING"


def test_a_stop_answers_what_has_arrived() -> None:
    rig = Rig()
    rig.subscribe()
    command, payload = rig.put_command(b"one")
    request = rig.post([command], [payload])
    rig.broker.stop()
    assert expect(re.PutReply, rig.answers()[request][0][0]).first_offset == 0


@pytest.mark.parametrize("wait_ms", [-1, -(2**62)])
def test_a_negative_wait_is_no_wait(wait_ms: int) -> None:
    rig = Rig()
    owner = rig.subscribe()
    request = rig.post([owner.get(wait_ms=wait_ms)])
    rig.rounds(2, forward_ms=1)
    assert offsets(rig.answers()[request][0][0]) == []


def test_a_waiting_get_is_answered_although_the_group_is_full() -> None:
    rig = Rig(limits=Limits(group_bytes_max=1_000))
    owner = rig.subscribe()
    waiting = rig.post([owner.get(wait_ms=5_000)], peer=b"waiting")
    rig.rounds()
    command, payload = rig.put_command(bytes(4_000))
    rig.post([command], [payload])
    rig.rounds()
    [reply], _ = rig.answers()[waiting]
    assert offsets(expect(re.GetReply, reply)) == [0]


def test_the_gets_of_one_request_are_bounded_together() -> None:
    rig = Rig(limits=Limits(get_bytes_max=10_000))
    owner = rig.subscribe()
    rig.put(bytes(8_000))
    request = rig.post([owner.get()] * 5)
    rig.rounds()
    replies, _ = rig.answers()[request]
    assert [type(reply) for reply in replies] == [re.GetReply, re.GetReply, re.NotNow, re.NotNow, re.NotNow]
