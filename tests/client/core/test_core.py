"""Numbers, retries and answers of the sans-I/O core."""

from __future__ import annotations

import pytest

from oncemq.protocol import errors
from oncemq.protocol.batch import checksum
from oncemq.protocol.commands import (
    Close,
    CreateTopic,
    Envelope,
    Get,
    Health,
    Hello,
    Numbered,
    Operation,
    Put,
    Read,
    RemoveSession,
    Transact,
    Void,
)
from oncemq.protocol.frames import encode_response
from oncemq.protocol.replies import Done, GetReply, HealthReply, HelloReply, NotNow, PutReply, Refusal, TopicReply
from tests.client.core.rig import CoreRig, stored


def offset_of(pending: object) -> int:
    reply = pending.result()  # type: ignore[attr-defined]
    assert isinstance(reply, PutReply)
    return reply.first_offset


def test_nothing_numbered_goes_before_the_hello_is_answered() -> None:
    rig = CoreRig()
    pending = rig.put()
    [request] = rig.sent()
    assert request.commands == (Hello("billing", 0, 7, 64, False),)
    assert rig.sent() == []
    rig.answer(request, HelloReply(3, 0, 64, (), "broker"))
    [command] = rig.numbered()
    assert (command.session, command.epoch, command.number, command.seen_below) == ("billing", 3, 1, 1)
    rig.answer_last(stored(0))
    assert offset_of(pending) == 0


def test_numbering_goes_on_after_what_an_earlier_process_sent() -> None:
    rig = CoreRig()
    rig.greet(epoch=2, last_number=41)
    rig.put()
    [command] = rig.numbered()
    assert (command.number, command.seen_below) == (42, 42)


def test_small_commands_share_a_request_in_order() -> None:
    rig = CoreRig()
    rig.greet()
    pendings = [rig.put(b"%d" % index) for index in range(5)]
    [request] = rig.sent()
    assert [command.number for command in request.commands if isinstance(command, Numbered)] == [1, 2, 3, 4, 5]
    assert [len(payloads) for payloads in rig.payloads[-1]] == [1] * 5
    rig.answer(request, *[stored(index) for index in range(5)])
    assert [offset_of(pending) for pending in pendings] == [0, 1, 2, 3, 4]


def test_large_batches_have_requests_of_their_own() -> None:
    rig = CoreRig(request_bytes_max=1000)
    rig.greet()
    for _ in range(3):
        rig.put(b"x" * 900)
    assert [len(request.commands) for request in rig.sent()] == [1, 1, 1]


def test_large_payloads_in_flight_are_fewer_than_a_busy_broker_accepts() -> None:
    rig = CoreRig()
    rig.greet()
    pendings = [rig.put(bytes(10 * 2**20)) for _ in range(5)]
    assert rig.numbers() == [1, 2]
    rig.answer(rig.requests[-2], stored(0))
    assert rig.core.has_outgoing(rig.now_ms)
    assert rig.numbers() == [3]
    rig.core.connection_lost(rig.now_ms)
    rig.resume(last_number=2, verdicts=((2, stored(1)),))
    assert rig.numbers() == [3, 4]
    rig.answer_last(stored(3))
    rig.answer(rig.requests[-2], stored(2))
    assert rig.numbers() == [5]
    rig.answer_last(stored(4))
    assert [offset_of(pending) for pending in pendings] == [0, 1, 2, 3, 4]


def test_a_connection_that_is_lost_at_once_does_not_use_up_the_only_try() -> None:
    rig = CoreRig(tries=1, timeout_ms=1000.0)
    rig.greet()
    pending = rig.put()
    rig.sent()
    rig.core.connection_lost(rig.now_ms)
    assert not pending.done
    rig.resume(last_number=0)
    assert rig.numbers() == [1]
    rig.answer_last(stored(5))
    assert offset_of(pending) == 5


def test_connections_that_are_lost_again_and_again_use_up_the_time_of_a_command() -> None:
    rig = CoreRig(tries=2, timeout_ms=1000.0)
    rig.greet()
    pending = rig.put()
    for _ in range(6):
        rig.sent()
        rig.now_ms += 500
        rig.core.connection_lost(rig.now_ms)
    with pytest.raises(errors.BrokerAway, match="has not answered this command"):
        pending.result()


def test_connections_that_are_lost_again_and_again_use_up_the_time_of_a_caller_that_waits_for_the_session() -> None:
    rig = CoreRig(tries=2, timeout_ms=1000.0)
    pending = rig.core.greet()
    for index in range(6):
        rig.sent()
        assert pending.done == (index > 4)
        rig.now_ms += 500
        rig.core.connection_lost(rig.now_ms)
    with pytest.raises(errors.BrokerAway, match="no answer"):
        pending.result()


def test_a_payload_of_any_size_is_sent_alone() -> None:
    rig = CoreRig()
    rig.greet()
    rig.put(bytes(25 * 2**20))
    rig.put()
    assert rig.numbers() == [1]
    rig.answer_last(stored(0))
    assert rig.numbers() == [2]


def test_no_more_commands_than_the_window_are_in_flight() -> None:
    rig = CoreRig(window=3)
    rig.greet(window=3)
    pendings = [rig.put() for _ in range(5)]
    [request] = rig.sent()
    assert len(request.commands) == 3
    assert rig.sent() == []
    rig.answer(request, stored(0), stored(1), stored(2))
    [later] = rig.sent()
    assert [(command.number, command.seen_below) for command in later.commands if isinstance(command, Numbered)] == [
        (4, 4),
        (5, 4),
    ]
    rig.answer(later, stored(3), stored(4))
    assert all(pending.done for pending in pendings)


def test_a_smaller_window_of_the_broker_is_respected() -> None:
    rig = CoreRig(window=64)
    rig.greet(window=2)
    for _ in range(5):
        rig.put()
    assert rig.numbers() == [1, 2]


def test_a_lost_request_is_sent_again_over_a_new_connection_with_the_same_bytes() -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.put(b"precious")
    [first] = rig.numbered()
    first_payload = rig.payloads[-1]
    assert rig.pass_ms(999) is False
    assert rig.pass_ms(1) is True
    rig.resume(last_number=0)
    [second] = rig.numbered()
    assert second == first
    assert rig.payloads[-1] == first_payload
    assert rig.requests[-1].request_id > rig.requests[1].request_id
    rig.answer_last(stored(9))
    assert offset_of(pending) == 9


def test_a_lost_reply_is_found_in_the_verdicts_of_the_resumed_session() -> None:
    rig = CoreRig()
    rig.greet()
    decided, undecided = rig.put(), rig.put()
    rig.sent()
    assert rig.pass_ms(1000) is True
    [hello] = rig.sent()
    assert hello.commands == (Hello("billing", 1, 7, 64, False),)
    rig.answer(hello, HelloReply(1, 1, 64, ((1, stored(77)),), "broker"))
    assert offset_of(decided) == 77
    assert not undecided.done
    [command] = rig.numbered()
    assert (command.number, command.seen_below) == (2, 2)


def test_a_refusal_among_the_verdicts_reaches_its_caller() -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.put()
    rig.sent()
    rig.pass_ms(1000)
    rig.resume(last_number=1, verdicts=((1, Refusal("TOPIC_UNKNOWN", "there is no topic 'orders'")),))
    with pytest.raises(errors.TopicUnknown, match="orders"):
        pending.result()


def test_a_repeated_reply_changes_nothing() -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.put()
    rig.sent()
    rig.answer_last(stored(1))
    rig.answer_last(stored(2))
    assert offset_of(pending) == 1


def test_a_late_reply_to_an_older_request_is_as_good() -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.put()
    [old] = rig.sent()
    rig.pass_ms(1000)
    rig.resume(last_number=0)
    assert rig.numbers() == [1]
    rig.answer(old, stored(5))
    assert offset_of(pending) == 5
    assert rig.core.is_idle


def test_a_gap_makes_it_go_back_and_send_everything_from_there_once() -> None:
    rig = CoreRig(request_commands_max=1)
    rig.greet()
    pendings = [rig.put() for _ in range(4)]
    lost, *arrived = rig.sent()
    for request in arrived:
        rig.answer(request, NotNow("GAP", "number came, 1 is next", 0))
    assert rig.numbers() == [1, 2, 3, 4]
    assert rig.numbers() == []
    resent = rig.requests[-4:]
    rig.answer(arrived[0], NotNow("GAP", "an old answer", 0))
    assert rig.numbers() == []
    for offset, request in enumerate(resent):
        rig.answer(request, stored(offset))
    assert [offset_of(pending) for pending in pendings] == [0, 1, 2, 3]
    assert lost.request_id < resent[0].request_id


def test_a_request_that_alone_was_lost_is_sent_again_without_a_new_connection() -> None:
    rig = CoreRig()
    rig.greet()
    lost = rig.core.ask(Health())
    [lost_request] = rig.sent()
    rig.now_ms += 10
    other = rig.core.ask(Health())
    [other_request] = rig.sent()
    health = HealthReply("1", "b", "file:", 0, 0, 0, 0, 0, {})
    rig.answer(other_request, health)
    assert other.done
    assert rig.pass_ms(1000) is False
    [again] = rig.sent()
    assert again.request_id not in (lost_request.request_id, other_request.request_id)
    rig.answer(again, health)
    assert lost.result() == health


def test_answers_that_keep_coming_hold_off_the_time_out() -> None:
    rig = CoreRig(request_commands_max=1)
    rig.greet()
    for _ in range(3):
        rig.put()
    requests = rig.sent()
    for offset, request in enumerate(requests):
        assert rig.pass_ms(900) is False
        rig.answer(request, stored(offset))
    assert rig.core.is_idle


@pytest.mark.parametrize("code", ["STOPPING", "OVERLOADED", "DISK_FULL", "DAMAGED_IN_TRANSIT"])
def test_not_now_is_tried_again_after_a_pause(code: str) -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.put()
    rig.sent()
    rig.answer_last(NotNow(code, "later"))
    assert not pending.done
    assert rig.numbers() == []
    rig.now_ms = rig.core.next_deadline_ms()
    assert rig.numbers() == [1]
    rig.answer_last(stored(0))
    assert offset_of(pending) == 0


def test_pauses_grow_up_to_a_second() -> None:
    rig = CoreRig(give_up_ms=60_000)
    rig.greet()
    rig.put()
    rig.sent()
    pauses = []
    for _ in range(7):
        rig.answer_last(NotNow("DISK_FULL", "full"))
        pauses.append(rig.core.next_deadline_ms() - rig.now_ms)
        rig.now_ms += pauses[-1]
        assert rig.numbers() == [1]
    assert pauses == [50, 100, 200, 400, 800, 1000, 1000]


def test_a_full_disk_is_reported_when_the_time_is_over_and_the_number_becomes_void() -> None:
    rig = CoreRig(give_up_ms=500)
    rig.greet()
    pending = rig.put()
    rig.sent()
    while not pending.done:
        rig.answer_last(NotNow("DISK_FULL", "no room"))
        rig.now_ms = rig.core.next_deadline_ms() if not pending.done else rig.now_ms
        sent = rig.numbered()
    with pytest.raises(errors.DiskFull, match="no room"):
        pending.result()
    [void] = sent
    assert (void.number, void.operation) == (1, Void())
    following = rig.put()
    rig.answer_last(Done())
    assert rig.numbers() == [2]
    rig.answer_last(stored(0))
    assert offset_of(following) == 0


def test_commands_behind_a_full_disk_fail_with_the_full_disk_not_with_the_gap() -> None:
    rig = CoreRig(give_up_ms=100)
    rig.greet()
    first, second = rig.put(), rig.put()
    rig.sent()
    rig.now_ms += 100
    rig.answer_last(NotNow("DISK_FULL", "no room"), NotNow("GAP", "1 is next", 0))
    for pending in (first, second):
        with pytest.raises(errors.DiskFull):
            pending.result()


def test_the_broker_is_away_after_some_tries_and_then_everything_fails() -> None:
    rig = CoreRig(tries=3, where="tcp://127.0.0.1:5555")
    rig.greet()
    pendings = [rig.put(), rig.core.ask(Health())]
    rig.sent()
    for _ in range(3):
        assert not any(pending.done for pending in pendings)
        assert rig.pass_ms(1000) is True
        rig.sent()
    for pending in pendings:
        with pytest.raises(errors.BrokerAway, match=r"tcp://127.0.0.1:5555 \(3 tries in 3 s\)$"):
            pending.result()
    assert rig.sent() == []
    assert rig.core.next_deadline_ms() == float("inf")


def test_what_failed_while_the_broker_was_away_is_void_when_it_is_back() -> None:
    rig = CoreRig(tries=1)
    rig.greet()
    lost = rig.put(b"given up")
    rig.sent()
    rig.pass_ms(1000)
    assert isinstance(lost.error, errors.BrokerAway)
    after = rig.put(b"new")
    rig.resume(last_number=0)
    void, put = rig.numbered()
    assert (void.number, void.operation) == (1, Void())
    assert put.number == 2
    assert isinstance(put.operation, Put)
    # The first one had been stored after all: the broker says so, and nobody wants to know.
    rig.answer_last(stored(0), stored(1))
    assert offset_of(after) == 1
    assert isinstance(lost.error, errors.BrokerAway)


def test_what_was_never_sent_uses_up_no_number() -> None:
    rig = CoreRig(tries=1, window=1)
    rig.greet(window=1)
    rig.put()
    queued = rig.put()
    rig.sent()
    rig.pass_ms(1000)
    assert isinstance(queued.error, errors.BrokerAway)
    after = rig.put()
    rig.resume(last_number=1, verdicts=((1, stored(0)),))
    assert rig.numbers() == [2]
    rig.answer_last(stored(1))
    assert offset_of(after) == 1


def test_a_caller_may_give_up_and_its_number_becomes_void() -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.put()
    rig.sent()
    rig.core.give_up(pending, errors.ClientClosed())
    assert isinstance(pending.error, errors.ClientClosed)
    assert [command.operation for command in rig.numbered()] == [Void()]
    rig.answer_last(Done())
    assert len(rig.core._window) == 0


@pytest.mark.parametrize("code", ["FENCED", "SESSION_UNKNOWN", "BROKER_AWAY"])
def test_what_leaves_a_put_in_doubt_says_so(code: str) -> None:
    assert "outcome of commands in flight is unknown" in errors.BY_CODE[code].advice


@pytest.mark.parametrize("code", ["FENCED", "SESSION_UNKNOWN"])
def test_losing_the_session_is_final(code: str) -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.put()
    rig.sent()
    rig.pass_ms(1000)
    [hello] = rig.sent()
    rig.answer(hello, Refusal(code, "gone"))
    kind = errors.BY_CODE[code]
    for failed in (pending, rig.put(), rig.core.ask(Health()), rig.core.greet()):
        with pytest.raises(kind):
            failed.result()
    assert rig.sent() == []
    assert rig.pass_ms(60_000) is False


def test_being_fenced_is_learned_from_a_numbered_reply_too() -> None:
    rig = CoreRig()
    rig.greet()
    first, second = rig.put(), rig.put()
    rig.sent()
    rig.answer_last(Refusal("FENCED", "another client"), Refusal("FENCED", "another client"))
    assert isinstance(first.error, errors.Fenced)
    assert isinstance(second.error, errors.Fenced)
    assert isinstance(rig.core.finished, errors.Fenced)
    assert not rig.core.has_outgoing(rig.now_ms)


def test_a_subscription_that_was_fenced_does_not_end_the_session() -> None:
    rig = CoreRig()
    rig.greet()
    closing = rig.core.submit(Close(5, "kitchen", 1))
    removing = rig.core.submit(RemoveSession("other"))
    getting = rig.core.ask(Get(5, "kitchen", 1, 0, 1000))
    get, numbered = rig.sent()
    rig.answer(get, Refusal("FENCED", "another owner"))
    rig.answer(numbered, Refusal("FENCED", "another owner"), Refusal("SESSION_UNKNOWN", "no session 'other'"))
    assert all(pending.done for pending in (closing, removing, getting))
    assert rig.core.finished is None


def test_a_broker_that_forgot_what_it_answered_ends_the_session() -> None:
    rig = CoreRig()
    rig.greet()
    rig.put()
    rig.sent()
    rig.answer_last(stored(0))
    pending = rig.put()
    rig.sent()
    rig.pass_ms(1000)
    rig.resume(last_number=0)
    with pytest.raises(errors.SessionUnknown, match="ends at number 0"):
        pending.result()


def test_a_request_that_could_not_be_read_is_sent_again_command_by_command() -> None:
    rig = CoreRig()
    rig.greet()
    bad, good = rig.put(), rig.put()
    rig.sent()
    rig.answer_last(Refusal("MALFORMED", "a request's header"))
    assert not bad.done
    assert not good.done
    first, second = rig.sent()
    assert [len(request.commands) for request in (first, second)] == [1, 1]
    rig.answer(first, Refusal("MALFORMED", "a request's header"))
    rig.answer(second, NotNow("GAP", "2 came, 1 is next", 0))
    assert isinstance(bad.error, errors.Malformed)
    void, again = rig.sent()
    assert [command.operation for command in void.commands if isinstance(command, Numbered)] == [Void()]
    rig.answer(void, Done())
    rig.answer(again, stored(0))
    assert offset_of(good) == 0
    assert rig.numbers() == []
    assert rig.core.is_idle


@pytest.mark.parametrize(
    ("operation", "kind", "text"),
    [
        (CreateTopic("\ud800"), errors.NameInvalid, "UTF-8"),
        (CreateTopic("orders", 2**70), errors.Malformed, "64 bits"),
        (CreateTopic("orders", 1.5), TypeError, "CreateTopic: retain_ms: Expected `int`, got `float`"),  # type: ignore[arg-type]
        (CreateTopic(5), TypeError, "CreateTopic: name: Expected `str`, got `int`"),  # type: ignore[arg-type]
        (CreateTopic(object()), TypeError, "CreateTopic"),  # type: ignore[arg-type]
        (Put("\ud800", Envelope(1, 1, 1)), errors.NameInvalid, "topic's name"),
        (Put(5, Envelope(1, 1, 1)), TypeError, "topic's name must be str, not int"),  # type: ignore[arg-type]
    ],
)
def test_what_can_not_be_sent_fails_for_its_caller_alone(
    operation: Operation, kind: type[Exception], text: str
) -> None:
    rig = CoreRig()
    rig.greet()
    before = rig.put()
    with pytest.raises(kind, match=text):
        rig.core.submit(operation, b"x")
    after = rig.put()
    assert rig.numbers() == [1, 2]
    rig.answer_last(stored(0), stored(1))
    assert (offset_of(before), offset_of(after)) == (0, 1)


def test_a_question_that_can_not_be_sent_fails_for_its_caller_alone() -> None:
    rig = CoreRig()
    with pytest.raises(errors.NameInvalid):
        rig.core.ask(Read("\ud800", 0, 1000))
    with pytest.raises(TypeError, match="Read: position"):
        rig.core.ask(Read("orders", "soon", 1000))  # type: ignore[arg-type]
    rig.core.ask(Health())
    assert rig.commands() == [Health()]


def anonymous_rig() -> CoreRig:
    rig = CoreRig(name="anonymous-1", anonymous=True, renewed=("anonymous-2", 8))
    rig.greet()
    rig.put()
    rig.sent()
    rig.answer_last(stored(0))
    return rig


def test_an_expired_anonymous_session_begins_anew_with_its_next_commands() -> None:
    rig = anonymous_rig()
    first, second = rig.put(), rig.put()
    getting = rig.core.ask(Get(5, "kitchen", 1, 0, 1000))
    get, numbered = rig.sent()
    unknown = Refusal("SESSION_UNKNOWN", "there is no session 'anonymous-1'")
    rig.answer(numbered, unknown, unknown)
    [hello] = rig.sent()
    assert hello.commands == (Hello("anonymous-2", 0, 8, 64, True),)
    rig.answer(numbered, unknown, unknown)
    rig.answer(get, GetReply(5, 0, 0, 0))
    assert getting.result() == GetReply(5, 0, 0, 0)
    rig.answer(hello, HelloReply(1, 0, 64, (), "broker"))
    assert [(command.session, command.number) for command in rig.numbered()] == [
        ("anonymous-2", 1),
        ("anonymous-2", 2),
    ]
    rig.answer_last(stored(1), stored(2))
    assert (offset_of(first), offset_of(second)) == (1, 2)
    assert rig.core.is_idle
    assert not rig.core._requests._known


def test_an_expired_anonymous_session_begins_anew_when_it_is_resumed() -> None:
    rig = anonymous_rig()
    rig.core.connection_lost(rig.now_ms)
    [resume] = rig.sent()
    late = rig.put()
    rig.answer(resume, Refusal("SESSION_UNKNOWN", "there is no session 'anonymous-1'"))
    [hello] = rig.sent()
    assert hello.commands == (Hello("anonymous-2", 0, 8, 64, True),)
    rig.answer(hello, HelloReply(1, 0, 64, (), "broker"))
    assert rig.numbers() == [1]
    rig.answer(resume, HelloReply(1, 5, 64, ((1, stored(77)),), "broker"))
    assert not late.done
    rig.answer_last(stored(1))
    assert offset_of(late) == 1


def test_an_expired_session_is_final_while_something_is_in_doubt() -> None:
    rig = anonymous_rig()
    pending = rig.put()
    rig.sent()
    assert rig.pass_ms(1000) is True
    [resume] = rig.sent()
    rig.answer(resume, Refusal("SESSION_UNKNOWN", "there is no session 'anonymous-1'"))
    with pytest.raises(errors.SessionUnknown):
        pending.result()
    assert isinstance(rig.core.finished, errors.SessionUnknown)


def test_a_command_that_was_sent_twice_is_in_doubt() -> None:
    rig = anonymous_rig()
    pending = rig.put()
    rig.sent()
    rig.pass_ms(1000)
    rig.resume(last_number=1)
    rig.sent()
    rig.answer_last(Refusal("SESSION_UNKNOWN", "there is no session 'anonymous-1'"))
    assert isinstance(pending.error, errors.SessionUnknown)
    assert rig.core.finished is not None


def test_garbage_is_counted_and_ignored() -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.put()
    [request] = rig.sent()
    before = rig.core.discarded_count
    for frames in ([], [b""], [b"\xc1"], [b"\x93\x01\x02"], [b"x" * 100, b"y"]):
        rig.core.receive(rig.now_ms, frames)
    rig.core.receive(rig.now_ms, encode_response(999, [stored(0)]))
    rig.core.receive(rig.now_ms, encode_response(request.request_id, [stored(0), stored(1)]))
    rig.core.receive(rig.now_ms, encode_response(request.request_id, [GetReply(5, 0, 0, 0)]))
    assert rig.core.discarded_count == before + 8
    assert not pending.done


def test_a_newer_broker_is_named_as_the_trouble() -> None:
    rig = CoreRig()
    pending = rig.core.greet()
    [request] = rig.sent()
    rig.core.receive(rig.now_ms, [b"\x93\x63" + bytes([request.request_id]) + b"\x90"])
    with pytest.raises(errors.VersionUnsupported):
        pending.result()


def test_a_waiting_get_has_its_wait_and_a_second() -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.core.ask(Get(5, "kitchen", 1, 0, 1000, wait_ms=2000))
    rig.sent()
    assert rig.core.next_deadline_ms() == rig.now_ms + 3000
    assert rig.pass_ms(2999) is False
    assert rig.pass_ms(1) is True
    gets = [command for command in rig.commands() if isinstance(command, Get)]
    assert gets == [Get(5, "kitchen", 1, 0, 1000, wait_ms=2000)]
    assert not pending.done


def test_a_waiting_get_does_not_delay_the_time_out_of_others() -> None:
    rig = CoreRig()
    rig.greet()
    rig.core.ask(Get(5, "kitchen", 1, 0, 1000, wait_ms=60_000))
    rig.put()
    rig.sent()
    assert rig.core.next_deadline_ms() == rig.now_ms + 1000
    assert rig.pass_ms(1000) is True


def test_a_hello_that_is_repeated_keeps_its_nonce_and_the_newest_answer_counts() -> None:
    rig = CoreRig()
    pending = rig.core.greet()
    [first] = rig.sent()
    assert rig.pass_ms(1000) is True
    [second] = rig.sent()
    assert first.commands == second.commands
    rig.answer(first, HelloReply(1, 0, 64, (), "broker"))
    assert not pending.done
    rig.answer(second, HelloReply(1, 0, 64, (), "broker"))
    assert pending.done
    rig.answer(first, HelloReply(9, 5, 64, (), "broker"))
    assert rig.core.epoch == 1


def test_a_refused_hello_fails_the_callers_and_may_be_tried_again() -> None:
    rig = CoreRig()
    pending = rig.core.greet()
    [hello] = rig.sent()
    rig.answer(hello, Refusal("LIMIT_REACHED", "too many sessions"))
    with pytest.raises(errors.LimitReached):
        pending.result()
    rig.greet()
    assert rig.core.epoch == 1


def test_a_hello_that_can_not_be_taken_now_is_tried_until_the_time_is_over() -> None:
    rig = CoreRig(give_up_ms=200)
    pending = rig.put()
    while not pending.done:
        [hello] = rig.sent()
        rig.answer(hello, NotNow("STOPPING", "the broker is stopping"))
        rig.now_ms = min(rig.core.next_deadline_ms(), rig.now_ms + 1000)
    with pytest.raises(errors.Stopping):
        pending.result()


def test_an_anonymous_session_says_goodbye_and_a_named_one_does_not() -> None:
    anonymous = CoreRig(anonymous=True)
    anonymous.greet()
    assert not anonymous.core.bye().done
    named = CoreRig()
    named.greet()
    assert named.core.bye().done
    assert named.sent() == []


def test_unnumbered_commands_need_no_session() -> None:
    rig = CoreRig()
    rig.core.ask(Health())
    assert rig.commands() == [Health()]


def test_other_operations_get_their_own_replies() -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.core.submit(CreateTopic("orders"))
    rig.sent()
    rig.answer_last(TopicReply(5, True))
    assert pending.result() == TopicReply(5, True)


def test_nothing_is_remembered_of_what_is_settled() -> None:
    rig = CoreRig(tries=100)
    rig.greet()
    for round_number in range(20):
        pending = rig.put()
        rig.sent()
        rig.pass_ms(1000)
        rig.resume(last_number=round_number)
        rig.sent()
        rig.answer_last(stored(round_number))
        assert pending.done
    assert len(rig.core._requests._known) <= 4
    assert not rig.core._requests


def test_a_batch_that_the_broker_would_not_take_is_refused_without_a_number() -> None:
    rig = CoreRig()
    rig.core.greet()
    [hello] = rig.sent()
    rig.answer(hello, HelloReply(1, 0, 64, (), "broker", 200))
    with pytest.raises(errors.TooLarge, match=r"^a message of 240 bytes; this broker accepts at most 200$"):
        rig.put(b"x" * 201).result()
    rig.put(b"x" * 100)
    assert rig.numbers() == [1]


def test_what_was_submitted_before_its_size_was_known_to_be_too_large_is_voided() -> None:
    rig = CoreRig()
    before, large, after = rig.put(), rig.put(b"x" * 201), rig.put()
    [hello] = rig.sent()
    rig.answer(hello, HelloReply(1, 0, 64, (), "broker", 200))
    sent = rig.numbered()
    assert [(command.number, isinstance(command.operation, Void)) for command in sent] == [
        (1, False),
        (2, True),
        (3, False),
    ]
    with pytest.raises(errors.TooLarge, match=r"^a message of 240 bytes"):
        large.result()
    rig.answer_last(stored(0), Done(), stored(1))
    assert (before.result(), after.result()) == (stored(0), stored(1))
    assert rig.core.is_idle
    assert rig.sent() == []


def transaction(*values: bytes) -> tuple[Transact, tuple[bytes, ...]]:
    return Transact(puts=tuple(Put("orders", Envelope(1, len(value), checksum(value))) for value in values)), values


def test_an_operation_s_payloads_are_sent_in_the_order_of_its_envelopes() -> None:
    rig = CoreRig()
    rig.greet()
    rig.put(b"before")
    rig.core.submit(*transaction(b"one", b"", b"three"))
    rig.core.submit(CreateTopic("empty"))
    rig.put(b"after")
    [request] = rig.sent()
    assert [command.number for command in request.commands if isinstance(command, Numbered)] == [1, 2, 3, 4]
    assert rig.payloads[-1][1:3] == [(b"one", b"", b"three"), ()]
    rig.pass_ms(1000)
    rig.resume(last_number=1)
    assert rig.numbers() == [1, 2, 3, 4]
    assert rig.payloads[-1][1] == (b"one", b"", b"three")


def test_all_payloads_of_an_operation_count_for_the_size_of_a_request() -> None:
    rig = CoreRig(request_bytes_max=1000)
    rig.greet()
    for _ in range(2):
        rig.core.submit(*transaction(b"x" * 300, b"y" * 300))
    assert [len(request.commands) for request in rig.sent()] == [1, 1]


def test_a_request_has_no_more_frames_than_a_broker_reads() -> None:
    rig = CoreRig(request_bytes_max=10**9)
    rig.greet()
    for _ in range(3):
        rig.core.submit(*transaction(*[b"x"] * 400))
    assert [len(request.commands) for request in rig.sent()] == [2, 1]
    with pytest.raises(errors.TooLarge, match="1001 batches in one operation"):
        rig.core.submit(*transaction(*[b"x"] * 1001))


@pytest.mark.parametrize("payloads", [None, (), (b"one",), (b"one", b"2", b"three"), (b"one", b"much")])
def test_payloads_that_do_not_fit_their_envelopes_are_not_sent(payloads: tuple[bytes, ...] | None) -> None:
    rig = CoreRig()
    operation, _ = transaction(b"one", b"two")
    with pytest.raises(errors.Malformed):
        rig.core.submit(operation, payloads)
    assert rig.core.is_idle


def test_the_payloads_of_a_transaction_together_have_to_be_small_enough() -> None:
    rig = CoreRig()
    rig.core.greet()
    [hello] = rig.sent()
    rig.answer(hello, HelloReply(1, 0, 64, (), "broker", 200))
    assert not rig.core.submit(*transaction(b"x" * 150, b"y" * 50)).done
    with pytest.raises(errors.TooLarge, match=r"^the transaction has 201 bytes"):
        rig.core.submit(*transaction(b"x" * 150, b"y" * 51)).result()
    with pytest.raises(errors.TooLarge, match=r"^a message of 201 bytes"):
        rig.core.submit(*transaction(b"x" * 201)).result()


def test_a_transaction_that_has_lost_its_subscription_does_not_end_the_session() -> None:
    rig = CoreRig()
    rig.greet()
    pending = rig.core.submit(*transaction(b"one"))
    rig.sent()
    rig.answer_last(Refusal("SUBSCRIPTION_FENCED", "another client took over 'kitchen'"))
    with pytest.raises(errors.SubscriptionFenced):
        pending.result()
    assert rig.core.finished is None
    rig.core.submit(*transaction(b"two"))
    rig.sent()
    rig.answer_last(Refusal("FENCED", "another client took over 'billing'"))
    assert rig.core.finished is not None
    assert rig.core.finished.code == "FENCED"
