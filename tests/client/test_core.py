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
from tests.client.scripted import Desk, stored


def offset_of(pending: object) -> int:
    reply = pending.result()  # type: ignore[attr-defined]
    assert isinstance(reply, PutReply)
    return reply.first_offset


def test_nothing_numbered_goes_before_the_hello_is_answered() -> None:
    desk = Desk()
    pending = desk.put()
    [request] = desk.sent()
    assert request.commands == (Hello("billing", 0, 7, 64, False),)
    assert desk.sent() == []
    desk.answer(request, HelloReply(3, 0, 64, (), "broker"))
    [command] = desk.numbered()
    assert (command.session, command.epoch, command.number, command.seen_below) == ("billing", 3, 1, 1)
    desk.answer_last(stored(0))
    assert offset_of(pending) == 0


def test_numbering_goes_on_after_what_an_earlier_process_sent() -> None:
    desk = Desk()
    desk.greet(epoch=2, last_number=41)
    desk.put()
    [command] = desk.numbered()
    assert (command.number, command.seen_below) == (42, 42)


def test_small_commands_share_a_request_in_order() -> None:
    desk = Desk()
    desk.greet()
    pendings = [desk.put(b"%d" % index) for index in range(5)]
    [request] = desk.sent()
    assert [command.number for command in request.commands if isinstance(command, Numbered)] == [1, 2, 3, 4, 5]
    assert [len(payloads) for payloads in desk.payloads[-1]] == [1] * 5
    desk.answer(request, *[stored(index) for index in range(5)])
    assert [offset_of(pending) for pending in pendings] == [0, 1, 2, 3, 4]


def test_large_batches_have_requests_of_their_own() -> None:
    desk = Desk(request_bytes_max=1000)
    desk.greet()
    for _ in range(3):
        desk.put(b"x" * 900)
    assert [len(request.commands) for request in desk.sent()] == [1, 1, 1]


def test_no_more_commands_than_the_window_are_in_flight() -> None:
    desk = Desk(window=3)
    desk.greet(window=3)
    pendings = [desk.put() for _ in range(5)]
    [request] = desk.sent()
    assert len(request.commands) == 3
    assert desk.sent() == []
    desk.answer(request, stored(0), stored(1), stored(2))
    [later] = desk.sent()
    assert [(command.number, command.seen_below) for command in later.commands if isinstance(command, Numbered)] == [
        (4, 4),
        (5, 4),
    ]
    desk.answer(later, stored(3), stored(4))
    assert all(pending.done for pending in pendings)


def test_a_smaller_window_of_the_broker_is_respected() -> None:
    desk = Desk(window=64)
    desk.greet(window=2)
    for _ in range(5):
        desk.put()
    assert desk.numbers() == [1, 2]


def test_a_lost_request_is_sent_again_over_a_new_connection_with_the_same_bytes() -> None:
    desk = Desk()
    desk.greet()
    pending = desk.put(b"precious")
    [first] = desk.numbered()
    first_payload = desk.payloads[-1]
    assert desk.pass_ms(999) is False
    assert desk.pass_ms(1) is True
    desk.resume(last_number=0)
    [second] = desk.numbered()
    assert second == first
    assert desk.payloads[-1] == first_payload
    assert desk.requests[-1].request_id > desk.requests[1].request_id
    desk.answer_last(stored(9))
    assert offset_of(pending) == 9


def test_a_lost_reply_is_found_in_the_verdicts_of_the_resumed_session() -> None:
    desk = Desk()
    desk.greet()
    decided, undecided = desk.put(), desk.put()
    desk.sent()
    assert desk.pass_ms(1000) is True
    [hello] = desk.sent()
    assert hello.commands == (Hello("billing", 1, 7, 64, False),)
    desk.answer(hello, HelloReply(1, 1, 64, ((1, stored(77)),), "broker"))
    assert offset_of(decided) == 77
    assert not undecided.done
    [command] = desk.numbered()
    assert (command.number, command.seen_below) == (2, 2)


def test_a_refusal_among_the_verdicts_reaches_its_caller() -> None:
    desk = Desk()
    desk.greet()
    pending = desk.put()
    desk.sent()
    desk.pass_ms(1000)
    desk.resume(last_number=1, verdicts=((1, Refusal("TOPIC_UNKNOWN", "there is no topic 'orders'")),))
    with pytest.raises(errors.TopicUnknown, match="orders"):
        pending.result()


def test_a_repeated_reply_changes_nothing() -> None:
    desk = Desk()
    desk.greet()
    pending = desk.put()
    desk.sent()
    desk.answer_last(stored(1))
    desk.answer_last(stored(2))
    assert offset_of(pending) == 1


def test_a_late_reply_to_an_older_request_is_as_good() -> None:
    desk = Desk()
    desk.greet()
    pending = desk.put()
    [old] = desk.sent()
    desk.pass_ms(1000)
    desk.resume(last_number=0)
    assert desk.numbers() == [1]
    desk.answer(old, stored(5))
    assert offset_of(pending) == 5
    assert desk.core.is_idle


def test_a_gap_makes_it_go_back_and_send_everything_from_there_once() -> None:
    desk = Desk(request_commands_max=1)
    desk.greet()
    pendings = [desk.put() for _ in range(4)]
    lost, *arrived = desk.sent()
    for request in arrived:
        desk.answer(request, NotNow("GAP", "number came, 1 is next", 0))
    assert desk.numbers() == [1, 2, 3, 4]
    assert desk.numbers() == []
    resent = desk.requests[-4:]
    desk.answer(arrived[0], NotNow("GAP", "an old answer", 0))
    assert desk.numbers() == []
    for offset, request in enumerate(resent):
        desk.answer(request, stored(offset))
    assert [offset_of(pending) for pending in pendings] == [0, 1, 2, 3]
    assert lost.request_id < resent[0].request_id


def test_a_request_that_alone_was_lost_is_sent_again_without_a_new_connection() -> None:
    desk = Desk()
    desk.greet()
    lost = desk.core.ask(Health())
    [lost_request] = desk.sent()
    desk.now_ms += 10
    other = desk.core.ask(Health())
    [other_request] = desk.sent()
    health = HealthReply("1", "b", "file:", 0, 0, 0, 0, 0, {})
    desk.answer(other_request, health)
    assert other.done
    assert desk.pass_ms(1000) is False
    [again] = desk.sent()
    assert again.request_id not in (lost_request.request_id, other_request.request_id)
    desk.answer(again, health)
    assert lost.result() == health


def test_answers_that_keep_coming_hold_off_the_time_out() -> None:
    desk = Desk(request_commands_max=1)
    desk.greet()
    for _ in range(3):
        desk.put()
    requests = desk.sent()
    for offset, request in enumerate(requests):
        assert desk.pass_ms(900) is False
        desk.answer(request, stored(offset))
    assert desk.core.is_idle


@pytest.mark.parametrize("code", ["STOPPING", "OVERLOADED", "DISK_FULL", "DAMAGED_IN_TRANSIT"])
def test_not_now_is_tried_again_after_a_pause(code: str) -> None:
    desk = Desk()
    desk.greet()
    pending = desk.put()
    desk.sent()
    desk.answer_last(NotNow(code, "later"))
    assert not pending.done
    assert desk.numbers() == []
    desk.now_ms = desk.core.next_deadline_ms()
    assert desk.numbers() == [1]
    desk.answer_last(stored(0))
    assert offset_of(pending) == 0


def test_pauses_grow_up_to_a_second() -> None:
    desk = Desk(give_up_ms=60_000)
    desk.greet()
    desk.put()
    desk.sent()
    pauses = []
    for _ in range(7):
        desk.answer_last(NotNow("DISK_FULL", "full"))
        pauses.append(desk.core.next_deadline_ms() - desk.now_ms)
        desk.now_ms += pauses[-1]
        assert desk.numbers() == [1]
    assert pauses == [50, 100, 200, 400, 800, 1000, 1000]


def test_a_full_disk_is_reported_when_the_time_is_over_and_the_number_becomes_void() -> None:
    desk = Desk(give_up_ms=500)
    desk.greet()
    pending = desk.put()
    desk.sent()
    while not pending.done:
        desk.answer_last(NotNow("DISK_FULL", "no room"))
        desk.now_ms = desk.core.next_deadline_ms() if not pending.done else desk.now_ms
        sent = desk.numbered()
    with pytest.raises(errors.DiskFull, match="no room"):
        pending.result()
    [void] = sent
    assert (void.number, void.operation) == (1, Void())
    following = desk.put()
    desk.answer_last(Done())
    assert desk.numbers() == [2]
    desk.answer_last(stored(0))
    assert offset_of(following) == 0


def test_commands_behind_a_full_disk_fail_with_the_full_disk_not_with_the_gap() -> None:
    desk = Desk(give_up_ms=100)
    desk.greet()
    first, second = desk.put(), desk.put()
    desk.sent()
    desk.now_ms += 100
    desk.answer_last(NotNow("DISK_FULL", "no room"), NotNow("GAP", "1 is next", 0))
    for pending in (first, second):
        with pytest.raises(errors.DiskFull):
            pending.result()


def test_the_broker_is_away_after_some_tries_and_then_everything_fails() -> None:
    desk = Desk(tries=3, where="tcp://127.0.0.1:5555")
    desk.greet()
    pendings = [desk.put(), desk.core.ask(Health())]
    desk.sent()
    for _ in range(3):
        assert not any(pending.done for pending in pendings)
        assert desk.pass_ms(1000) is True
        desk.sent()
    for pending in pendings:
        with pytest.raises(errors.BrokerAway, match=r"tcp://127.0.0.1:5555 \(3 tries in 3 s\)$"):
            pending.result()
    assert desk.sent() == []
    assert desk.core.next_deadline_ms() == float("inf")


def test_what_failed_while_the_broker_was_away_is_void_when_it_is_back() -> None:
    desk = Desk(tries=1)
    desk.greet()
    lost = desk.put(b"given up")
    desk.sent()
    desk.pass_ms(1000)
    assert isinstance(lost.error, errors.BrokerAway)
    after = desk.put(b"new")
    desk.resume(last_number=0)
    void, put = desk.numbered()
    assert (void.number, void.operation) == (1, Void())
    assert put.number == 2
    assert isinstance(put.operation, Put)
    # The first one had been stored after all: the broker says so, and nobody wants to know.
    desk.answer_last(stored(0), stored(1))
    assert offset_of(after) == 1
    assert isinstance(lost.error, errors.BrokerAway)


def test_what_was_never_sent_uses_up_no_number() -> None:
    desk = Desk(tries=1, window=1)
    desk.greet(window=1)
    desk.put()
    queued = desk.put()
    desk.sent()
    desk.pass_ms(1000)
    assert isinstance(queued.error, errors.BrokerAway)
    after = desk.put()
    desk.resume(last_number=1, verdicts=((1, stored(0)),))
    assert desk.numbers() == [2]
    desk.answer_last(stored(1))
    assert offset_of(after) == 1


def test_a_caller_may_give_up_and_its_number_becomes_void() -> None:
    desk = Desk()
    desk.greet()
    pending = desk.put()
    desk.sent()
    desk.core.give_up(pending, errors.ClientClosed())
    assert isinstance(pending.error, errors.ClientClosed)
    assert [command.operation for command in desk.numbered()] == [Void()]
    desk.answer_last(Done())
    assert len(desk.core._window) == 0


@pytest.mark.parametrize("code", ["FENCED", "SESSION_UNKNOWN", "BROKER_AWAY"])
def test_what_leaves_a_put_in_doubt_says_so(code: str) -> None:
    assert "outcome of commands in flight is unknown" in errors.BY_CODE[code].advice


@pytest.mark.parametrize("code", ["FENCED", "SESSION_UNKNOWN"])
def test_losing_the_session_is_final(code: str) -> None:
    desk = Desk()
    desk.greet()
    pending = desk.put()
    desk.sent()
    desk.pass_ms(1000)
    [hello] = desk.sent()
    desk.answer(hello, Refusal(code, "gone"))
    kind = errors.BY_CODE[code]
    for failed in (pending, desk.put(), desk.core.ask(Health()), desk.core.greet()):
        with pytest.raises(kind):
            failed.result()
    assert desk.sent() == []
    assert desk.pass_ms(60_000) is False


def test_being_fenced_is_learned_from_a_numbered_reply_too() -> None:
    desk = Desk()
    desk.greet()
    first, second = desk.put(), desk.put()
    desk.sent()
    desk.answer_last(Refusal("FENCED", "another client"), Refusal("FENCED", "another client"))
    assert isinstance(first.error, errors.Fenced)
    assert isinstance(second.error, errors.Fenced)
    assert isinstance(desk.core.finished, errors.Fenced)
    assert not desk.core.has_outgoing(desk.now_ms)


def test_a_subscription_that_was_fenced_does_not_end_the_session() -> None:
    desk = Desk()
    desk.greet()
    closing = desk.core.submit(Close(5, "kitchen", 1))
    removing = desk.core.submit(RemoveSession("other"))
    getting = desk.core.ask(Get(5, "kitchen", 1, 0, 1000))
    get, numbered = desk.sent()
    desk.answer(get, Refusal("FENCED", "another owner"))
    desk.answer(numbered, Refusal("FENCED", "another owner"), Refusal("SESSION_UNKNOWN", "no session 'other'"))
    assert all(pending.done for pending in (closing, removing, getting))
    assert desk.core.finished is None


def test_a_broker_that_forgot_what_it_answered_ends_the_session() -> None:
    desk = Desk()
    desk.greet()
    desk.put()
    desk.sent()
    desk.answer_last(stored(0))
    pending = desk.put()
    desk.sent()
    desk.pass_ms(1000)
    desk.resume(last_number=0)
    with pytest.raises(errors.SessionUnknown, match="ends at number 0"):
        pending.result()


def test_a_request_that_could_not_be_read_is_sent_again_command_by_command() -> None:
    desk = Desk()
    desk.greet()
    bad, good = desk.put(), desk.put()
    desk.sent()
    desk.answer_last(Refusal("MALFORMED", "a request's header"))
    assert not bad.done
    assert not good.done
    first, second = desk.sent()
    assert [len(request.commands) for request in (first, second)] == [1, 1]
    desk.answer(first, Refusal("MALFORMED", "a request's header"))
    desk.answer(second, NotNow("GAP", "2 came, 1 is next", 0))
    assert isinstance(bad.error, errors.Malformed)
    void, again = desk.sent()
    assert [command.operation for command in void.commands if isinstance(command, Numbered)] == [Void()]
    desk.answer(void, Done())
    desk.answer(again, stored(0))
    assert offset_of(good) == 0
    assert desk.numbers() == []
    assert desk.core.is_idle


@pytest.mark.parametrize(
    ("operation", "kind", "text"),
    [
        (CreateTopic("\ud800"), errors.NameInvalid, "UTF-8"),
        (CreateTopic("orders", 2**70), errors.Malformed, "64 bits"),
        (CreateTopic("orders", 1.5), TypeError, "CreateTopic: retain_ms: Expected `int`, got `float`"),  # type: ignore[arg-type]
        (CreateTopic(5), TypeError, "CreateTopic: name: Expected `str`, got `int`"),  # type: ignore[arg-type]
        (CreateTopic(object()), TypeError, "CreateTopic"),  # type: ignore[arg-type]
        (Put("\ud800", Envelope(1, 1, 1)), errors.NameInvalid, "topic's name"),
        (Put(5, Envelope(1, 1, 1)), TypeError, "topic's name is str, not int"),  # type: ignore[arg-type]
    ],
)
def test_what_can_not_be_sent_fails_for_its_caller_alone(
    operation: Operation, kind: type[Exception], text: str
) -> None:
    desk = Desk()
    desk.greet()
    before = desk.put()
    with pytest.raises(kind, match=text):
        desk.core.submit(operation, b"x")
    after = desk.put()
    assert desk.numbers() == [1, 2]
    desk.answer_last(stored(0), stored(1))
    assert (offset_of(before), offset_of(after)) == (0, 1)


def test_a_question_that_can_not_be_sent_fails_for_its_caller_alone() -> None:
    desk = Desk()
    with pytest.raises(errors.NameInvalid):
        desk.core.ask(Read("\ud800", 0, 1000))
    with pytest.raises(TypeError, match="Read: position"):
        desk.core.ask(Read("orders", "soon", 1000))  # type: ignore[arg-type]
    desk.core.ask(Health())
    assert desk.commands() == [Health()]


def anonymous_desk() -> Desk:
    desk = Desk(name="anonymous-1", anonymous=True, renewed=("anonymous-2", 8))
    desk.greet()
    desk.put()
    desk.sent()
    desk.answer_last(stored(0))
    return desk


def test_an_expired_anonymous_session_begins_anew_with_its_next_commands() -> None:
    desk = anonymous_desk()
    first, second = desk.put(), desk.put()
    getting = desk.core.ask(Get(5, "kitchen", 1, 0, 1000))
    get, numbered = desk.sent()
    unknown = Refusal("SESSION_UNKNOWN", "there is no session 'anonymous-1'")
    desk.answer(numbered, unknown, unknown)
    [hello] = desk.sent()
    assert hello.commands == (Hello("anonymous-2", 0, 8, 64, True),)
    desk.answer(numbered, unknown, unknown)
    desk.answer(get, GetReply(5, 0, 0, 0))
    assert getting.result() == GetReply(5, 0, 0, 0)
    desk.answer(hello, HelloReply(1, 0, 64, (), "broker"))
    assert [(command.session, command.number) for command in desk.numbered()] == [
        ("anonymous-2", 1),
        ("anonymous-2", 2),
    ]
    desk.answer_last(stored(1), stored(2))
    assert (offset_of(first), offset_of(second)) == (1, 2)
    assert desk.core.is_idle
    assert not desk.core._requests._known


def test_an_expired_anonymous_session_begins_anew_when_it_is_resumed() -> None:
    desk = anonymous_desk()
    desk.core.disconnected()
    [resume] = desk.sent()
    late = desk.put()
    desk.answer(resume, Refusal("SESSION_UNKNOWN", "there is no session 'anonymous-1'"))
    [hello] = desk.sent()
    assert hello.commands == (Hello("anonymous-2", 0, 8, 64, True),)
    desk.answer(hello, HelloReply(1, 0, 64, (), "broker"))
    assert desk.numbers() == [1]
    desk.answer(resume, HelloReply(1, 5, 64, ((1, stored(77)),), "broker"))
    assert not late.done
    desk.answer_last(stored(1))
    assert offset_of(late) == 1


def test_an_expired_session_is_final_while_something_is_in_doubt() -> None:
    desk = anonymous_desk()
    pending = desk.put()
    desk.sent()
    assert desk.pass_ms(1000) is True
    [resume] = desk.sent()
    desk.answer(resume, Refusal("SESSION_UNKNOWN", "there is no session 'anonymous-1'"))
    with pytest.raises(errors.SessionUnknown):
        pending.result()
    assert isinstance(desk.core.finished, errors.SessionUnknown)


def test_a_command_that_was_sent_twice_is_in_doubt() -> None:
    desk = anonymous_desk()
    pending = desk.put()
    desk.sent()
    desk.pass_ms(1000)
    desk.resume(last_number=1)
    desk.sent()
    desk.answer_last(Refusal("SESSION_UNKNOWN", "there is no session 'anonymous-1'"))
    assert isinstance(pending.error, errors.SessionUnknown)
    assert desk.core.finished is not None


def test_garbage_is_counted_and_ignored() -> None:
    desk = Desk()
    desk.greet()
    pending = desk.put()
    [request] = desk.sent()
    before = desk.core.discarded_count
    for frames in ([], [b""], [b"\xc1"], [b"\x93\x01\x02"], [b"x" * 100, b"y"]):
        desk.core.receive(desk.now_ms, frames)
    desk.core.receive(desk.now_ms, encode_response(999, [stored(0)]))
    desk.core.receive(desk.now_ms, encode_response(request.request_id, [stored(0), stored(1)]))
    desk.core.receive(desk.now_ms, encode_response(request.request_id, [GetReply(5, 0, 0, 0)]))
    assert desk.core.discarded_count == before + 8
    assert not pending.done


def test_a_newer_broker_is_named_as_the_trouble() -> None:
    desk = Desk()
    pending = desk.core.greet()
    [request] = desk.sent()
    desk.core.receive(desk.now_ms, [b"\x93\x63" + bytes([request.request_id]) + b"\x90"])
    with pytest.raises(errors.VersionUnsupported):
        pending.result()


def test_a_waiting_get_has_its_wait_and_a_second() -> None:
    desk = Desk()
    desk.greet()
    pending = desk.core.ask(Get(5, "kitchen", 1, 0, 1000, wait_ms=2000))
    desk.sent()
    assert desk.core.next_deadline_ms() == desk.now_ms + 3000
    assert desk.pass_ms(2999) is False
    assert desk.pass_ms(1) is True
    gets = [command for command in desk.commands() if isinstance(command, Get)]
    assert gets == [Get(5, "kitchen", 1, 0, 1000, wait_ms=2000)]
    assert not pending.done


def test_a_waiting_get_does_not_delay_the_time_out_of_others() -> None:
    desk = Desk()
    desk.greet()
    desk.core.ask(Get(5, "kitchen", 1, 0, 1000, wait_ms=60_000))
    desk.put()
    desk.sent()
    assert desk.core.next_deadline_ms() == desk.now_ms + 1000
    assert desk.pass_ms(1000) is True


def test_a_hello_that_is_repeated_keeps_its_nonce_and_the_newest_answer_counts() -> None:
    desk = Desk()
    pending = desk.core.greet()
    [first] = desk.sent()
    assert desk.pass_ms(1000) is True
    [second] = desk.sent()
    assert first.commands == second.commands
    desk.answer(first, HelloReply(1, 0, 64, (), "broker"))
    assert not pending.done
    desk.answer(second, HelloReply(1, 0, 64, (), "broker"))
    assert pending.done
    desk.answer(first, HelloReply(9, 5, 64, (), "broker"))
    assert desk.core.epoch == 1


def test_a_refused_hello_fails_the_callers_and_may_be_tried_again() -> None:
    desk = Desk()
    pending = desk.core.greet()
    [hello] = desk.sent()
    desk.answer(hello, Refusal("LIMIT_REACHED", "too many sessions"))
    with pytest.raises(errors.LimitReached):
        pending.result()
    desk.greet()
    assert desk.core.epoch == 1


def test_a_hello_that_can_not_be_taken_now_is_tried_until_the_time_is_over() -> None:
    desk = Desk(give_up_ms=200)
    pending = desk.put()
    while not pending.done:
        [hello] = desk.sent()
        desk.answer(hello, NotNow("STOPPING", "the broker is stopping"))
        desk.now_ms = min(desk.core.next_deadline_ms(), desk.now_ms + 1000)
    with pytest.raises(errors.Stopping):
        pending.result()


def test_an_anonymous_session_says_goodbye_and_a_named_one_does_not() -> None:
    anonymous = Desk(anonymous=True)
    anonymous.greet()
    assert not anonymous.core.bye().done
    named = Desk()
    named.greet()
    assert named.core.bye().done
    assert named.sent() == []


def test_unnumbered_commands_need_no_session() -> None:
    desk = Desk()
    desk.core.ask(Health())
    assert desk.commands() == [Health()]


def test_other_operations_get_their_own_replies() -> None:
    desk = Desk()
    desk.greet()
    pending = desk.core.submit(CreateTopic("orders"))
    desk.sent()
    desk.answer_last(TopicReply(5, True))
    assert pending.result() == TopicReply(5, True)


def test_nothing_is_remembered_of_what_is_settled() -> None:
    desk = Desk(tries=100)
    desk.greet()
    for round_number in range(20):
        pending = desk.put()
        desk.sent()
        desk.pass_ms(1000)
        desk.resume(last_number=round_number)
        desk.sent()
        desk.answer_last(stored(round_number))
        assert pending.done
    assert len(desk.core._requests._known) <= 4
    assert not desk.core._requests


def test_a_batch_that_the_broker_would_not_take_is_refused_without_a_number() -> None:
    desk = Desk()
    desk.core.greet()
    [hello] = desk.sent()
    desk.answer(hello, HelloReply(1, 0, 64, (), "broker", 200))
    with pytest.raises(errors.TooLarge, match=r"^a message of 240 bytes; this broker takes up to 200$"):
        desk.put(b"x" * 201).result()
    desk.put(b"x" * 100)
    assert desk.numbers() == [1]


def test_what_was_submitted_before_its_size_was_known_to_be_too_large_is_voided() -> None:
    desk = Desk()
    before, large, after = desk.put(), desk.put(b"x" * 201), desk.put()
    [hello] = desk.sent()
    desk.answer(hello, HelloReply(1, 0, 64, (), "broker", 200))
    sent = desk.numbered()
    assert [(command.number, isinstance(command.operation, Void)) for command in sent] == [
        (1, False),
        (2, True),
        (3, False),
    ]
    with pytest.raises(errors.TooLarge, match=r"^a message of 240 bytes"):
        large.result()
    desk.answer_last(stored(0), Done(), stored(1))
    assert (before.result(), after.result()) == (stored(0), stored(1))
    assert desk.core.is_idle
    assert desk.sent() == []


def transaction(*values: bytes) -> tuple[Transact, tuple[bytes, ...]]:
    return Transact(puts=tuple(Put("orders", Envelope(1, len(value), checksum(value))) for value in values)), values


def test_an_operation_s_payloads_are_sent_in_the_order_of_its_envelopes() -> None:
    desk = Desk()
    desk.greet()
    desk.put(b"before")
    desk.core.submit(*transaction(b"one", b"", b"three"))
    desk.core.submit(CreateTopic("empty"))
    desk.put(b"after")
    [request] = desk.sent()
    assert [command.number for command in request.commands if isinstance(command, Numbered)] == [1, 2, 3, 4]
    assert desk.payloads[-1][1:3] == [(b"one", b"", b"three"), ()]
    desk.pass_ms(1000)
    desk.resume(last_number=1)
    assert desk.numbers() == [1, 2, 3, 4]
    assert desk.payloads[-1][1] == (b"one", b"", b"three")


def test_all_payloads_of_an_operation_count_for_the_size_of_a_request() -> None:
    desk = Desk(request_bytes_max=1000)
    desk.greet()
    for _ in range(2):
        desk.core.submit(*transaction(b"x" * 300, b"y" * 300))
    assert [len(request.commands) for request in desk.sent()] == [1, 1]


def test_a_request_has_no_more_frames_than_a_broker_reads() -> None:
    desk = Desk(request_bytes_max=10**9)
    desk.greet()
    for _ in range(3):
        desk.core.submit(*transaction(*[b"x"] * 400))
    assert [len(request.commands) for request in desk.sent()] == [2, 1]
    with pytest.raises(errors.TooLarge, match="1001 batches in one operation"):
        desk.core.submit(*transaction(*[b"x"] * 1001))


@pytest.mark.parametrize("payloads", [None, (), (b"one",), (b"one", b"2", b"three"), (b"one", b"much")])
def test_payloads_that_do_not_fit_their_envelopes_are_not_sent(payloads: tuple[bytes, ...] | None) -> None:
    desk = Desk()
    operation, _ = transaction(b"one", b"two")
    with pytest.raises(errors.Malformed):
        desk.core.submit(operation, payloads)
    assert desk.core.is_idle


def test_each_payload_of_an_operation_has_to_be_small_enough() -> None:
    desk = Desk()
    desk.core.greet()
    [hello] = desk.sent()
    desk.answer(hello, HelloReply(1, 0, 64, (), "broker", 200))
    assert not desk.core.submit(*transaction(b"x" * 150, b"y" * 150)).done
    with pytest.raises(errors.TooLarge, match=r"^a batch of 201 bytes"):
        desk.core.submit(*transaction(b"x" * 150, b"y" * 201)).result()


def test_a_transaction_that_has_lost_its_subscription_does_not_end_the_session() -> None:
    desk = Desk()
    desk.greet()
    pending = desk.core.submit(*transaction(b"one"))
    desk.sent()
    desk.answer_last(Refusal("SUBSCRIPTION_FENCED", "another client took over 'kitchen'"))
    with pytest.raises(errors.SubscriptionFenced):
        pending.result()
    assert desk.core.finished is None
    desk.core.submit(*transaction(b"two"))
    desk.sent()
    desk.answer_last(Refusal("FENCED", "another client took over 'billing'"))
    assert desk.core.finished is not None
    assert desk.core.finished.code == "FENCED"
