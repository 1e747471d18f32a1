"""The short path of a put that is alone: what it sends, when it can't be used, and what happens without an answer."""

from __future__ import annotations

import pytest

from oncemq.client.core.commands.observer import Observer
from oncemq.client.core.commands.pending import Pending
from oncemq.client.core.core import Core
from oncemq.client.core.options import Options
from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.commands import Envelope, Get, Numbered, Put, Void
from oncemq.protocol.frames import decode_request
from oncemq.protocol.replies import GetReply, HelloReply, NotNow, PutReply, Refusal
from tests.client.core.rig import CoreRig, stored

BATCH_BYTES_MAX = 1000


def _greeted(**options: object) -> CoreRig:
    rig = CoreRig(**options)  # type: ignore[arg-type]
    rig.core.greet()
    [request] = rig.sent()
    rig.answer(request, HelloReply(1, 0, 64, (), "broker", BATCH_BYTES_MAX))
    return rig


def _put(value: bytes = b"x", topic: str = "orders") -> tuple[Put, bytes]:
    payload = encode_batch([value])
    return Put(topic, Envelope(1, len(payload), checksum(payload))), payload


def _put_alone(rig: CoreRig, value: bytes = b"x") -> Pending:
    """Put, and note the request as sent."""
    operation, payload = _put(value)
    frames = rig.core.alone(operation, payload, rig.now_ms)
    assert frames is not None
    request, payloads = decode_request(frames)
    assert payloads == [(payload,)]
    rig.requests.append(request)
    return rig.core.sent_alone(operation, payload, frames, rig.now_ms)


def _can_put_alone(rig: CoreRig) -> bool:
    return rig.core.alone(*_put(), rig.now_ms) is not None


def _offset(pending: Pending) -> int:
    reply = pending.result()
    assert isinstance(reply, PutReply)
    return reply.first_offset


def test_puts_are_numbered_in_order_with_those_of_the_long_path() -> None:
    rig = _greeted()
    offsets = []
    for index in range(4):
        pending = rig.put() if index % 2 else _put_alone(rig)
        if index % 2:
            rig.sent()
        [command] = rig.requests[-1].commands
        assert isinstance(command, Numbered)
        assert (command.number, command.seen_below) == (index + 1, index + 1)
        rig.answer_last(stored(index))
        offsets.append(_offset(pending))
    assert offsets == [0, 1, 2, 3]
    assert rig.core.is_idle
    assert rig.core.next_deadline_ms() == float("inf")


def test_it_is_not_used_before_the_session_is_open() -> None:
    assert not _can_put_alone(CoreRig())


def test_it_does_not_overtake_commands_that_wait_or_are_in_flight() -> None:
    rig = _greeted()
    pending = rig.put()
    assert not _can_put_alone(rig)
    rig.sent()
    assert not _can_put_alone(rig)
    rig.answer_last(stored(0))
    assert pending.done
    assert _can_put_alone(rig)
    _put_alone(rig)
    assert not _can_put_alone(rig)


def test_it_is_not_used_for_what_the_broker_would_not_accept() -> None:
    rig = _greeted()
    assert rig.core.alone(*_put(bytes(BATCH_BYTES_MAX)), rig.now_ms) is None
    with pytest.raises(errors.NameInvalid):
        rig.core.alone(*_put(topic="\ud800"), rig.now_ms)
    assert rig.core.is_idle


def test_it_is_not_used_if_somebody_must_know_of_the_put_before() -> None:
    core = Core("billing", False, 7, Options(), observer=Observer())
    rig = CoreRig()
    rig.core = core
    rig.greet()
    assert not _can_put_alone(rig)


def test_a_lost_request_is_sent_again_under_its_number() -> None:
    rig = _greeted()
    pending = _put_alone(rig, b"pizza")
    assert rig.pass_ms(1001)
    rig.resume(last_number=0)
    assert rig.numbers() == [1]
    rig.answer_last(stored(0))
    assert _offset(pending) == 0


def test_a_lost_reply_is_in_the_hello() -> None:
    rig = _greeted()
    pending = _put_alone(rig)
    rig.core.connection_lost(rig.now_ms)
    rig.resume(last_number=1, verdicts=((1, stored(0)),))
    assert _offset(pending) == 0
    assert rig.numbers() == []


def test_a_late_reply_to_the_first_request_counts() -> None:
    rig = _greeted()
    pending = _put_alone(rig)
    first = rig.requests[-1]
    assert rig.pass_ms(1001)
    rig.resume(last_number=0)
    assert rig.numbers() == [1]
    rig.answer(first, stored(0))
    assert _offset(pending) == 0
    assert rig.core.is_idle


def test_a_refusal_is_raised() -> None:
    rig = _greeted()
    pending = _put_alone(rig)
    rig.answer_last(Refusal("TOPIC_UNKNOWN", "there is no topic 'orders'"))
    with pytest.raises(errors.TopicUnknown):
        pending.result()
    assert _can_put_alone(rig)


def test_not_now_is_tried_again_on_the_long_path() -> None:
    rig = _greeted()
    pending = _put_alone(rig)
    rig.answer_last(NotNow("DISK_FULL", "no space"))
    assert not _can_put_alone(rig)
    rig.now_ms += 100
    assert rig.numbers() == [1]
    rig.answer_last(stored(0))
    assert _offset(pending) == 0
    assert _can_put_alone(rig)


def test_other_answers_may_come_first() -> None:
    rig = _greeted()
    get = rig.core.ask(Get(5, "kitchen", 1, 0, 1000, 100))
    [request] = rig.sent()
    pending = _put_alone(rig)
    rig.answer(request, GetReply(5, 0, 0, 0))
    assert get.done
    assert not pending.done
    rig.answer_last(stored(0))
    assert pending.done


def test_a_put_that_was_given_up_is_void() -> None:
    rig = _greeted()
    pending = _put_alone(rig)
    rig.core.give_up(pending, errors.ClientClosed("the caller gave up"))
    assert isinstance(pending.error, errors.ClientClosed)
    [void] = rig.numbered()
    assert (void.number, void.operation) == (1, Void())
    rig.answer_last(stored(0))
    assert isinstance(pending.error, errors.ClientClosed)
    assert _can_put_alone(rig)


@pytest.mark.parametrize("reply", [PutReply(5, 0, 1, 1_000, 1), Refusal("BROKER_BUG", "")])
def test_an_answer_to_something_else_does_not_count(reply: PutReply | Refusal) -> None:
    rig = _greeted()
    pending = _put_alone(rig)
    other = rig.requests[0]
    rig.answer(other, reply)
    assert not pending.done
    rig.answer_last(stored(7))
    assert _offset(pending) == 7


def test_a_final_error_ends_it() -> None:
    rig = _greeted()
    pending = _put_alone(rig)
    rig.answer_last(Refusal("FENCED", "another client took over"))
    assert isinstance(pending.error, errors.Fenced)
    assert not _can_put_alone(rig)
