"""What the core sends beside its own numbered commands: questions, and operations on behalf of somebody else."""

from __future__ import annotations

import pytest

from oncemq.client.core.pending import Pending
from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.commands import Ack, Command, Envelope, Get, Health, Keyed, Numbered, Put, Topics
from oncemq.protocol.replies import AckReply, NotNow, PutReply, Refusal
from tests.client.scripted import Desk, stored

PAYLOAD = encode_batch([b"one pizza"])
PUT = Put("orders", Envelope(1, len(PAYLOAD), checksum(PAYLOAD)))


def keyed(desk: Desk, key: str = "k") -> Pending:
    return desk.core.ask(Keyed("web", key, PUT), PAYLOAD)


def test_what_brings_no_messages_shares_a_request() -> None:
    desk = Desk()
    get = Get(5, "kitchen", 1, 0, 1000)
    questions: list[Command] = [Ack(5, "kitchen", 1, 3), get, Topics(), get, Ack(6, "bar", 1, 4)]
    pendings = [desk.core.ask(question) for question in questions]
    requests = desk.sent()
    assert [request.commands for request in requests] == [
        (get,),
        (get,),
        (questions[0], questions[2], questions[4]),
    ]
    desk.answer(requests[2], AckReply(3), Refusal("NAME_INVALID", "no"), AckReply(4))
    assert [pending.done for pending in pendings] == [True, False, True, False, True]
    assert pendings[4].result() == AckReply(4)


def test_an_operation_under_a_key_carries_its_payload_and_is_sent_again_as_it_is() -> None:
    desk = Desk()
    pendings = [keyed(desk, "a"), keyed(desk, "b")]
    [request] = desk.sent()
    assert [command.key for command in request.commands if isinstance(command, Keyed)] == ["a", "b"]
    assert desk.payloads[-1] == [(PAYLOAD,), (PAYLOAD,)]
    assert desk.pass_ms(1500)
    [again] = desk.sent()
    assert (again.commands, desk.payloads[-1]) == (request.commands, [(PAYLOAD,), (PAYLOAD,)])
    desk.answer(again, stored(3), stored(4))
    assert [pending.result() for pending in pendings] == [stored(3), stored(4)]


def test_a_refused_request_is_sent_again_command_by_command() -> None:
    desk = Desk()
    pendings = [keyed(desk, key) for key in "abc"]
    [request] = desk.sent()
    desk.answer(request, Refusal("MALFORMED", "one of them"))
    alone = desk.sent()
    assert [len(request.commands) for request in alone] == [1, 1, 1]
    for offset, request in enumerate(alone):
        desk.answer(request, stored(offset))
    assert all(isinstance(pending.result(), PutReply) for pending in pendings)


def test_somebody_elses_fence_and_gap_are_theirs() -> None:
    desk = Desk()
    desk.greet()
    pendings = [desk.core.ask(Numbered("shop", 1, number, number, PUT), PAYLOAD) for number in (4, 5)]
    [request] = desk.sent()
    desk.answer(request, Refusal("FENCED", "another one"), NotNow("GAP", "3 is next", 2))
    with pytest.raises(errors.Fenced):
        pendings[0].result()
    with pytest.raises(errors.Gap):
        pendings[1].result()
    assert desk.core.finished is None


def test_a_payload_that_does_not_belong_is_refused_before_it_is_sent() -> None:
    desk = Desk()
    with pytest.raises(errors.Malformed):
        desk.core.ask(Keyed("web", "k", PUT), b"another")
    desk.core._session.batch_bytes_max = 10
    with pytest.raises(errors.TooLarge):
        keyed(desk).result()
    desk.core.ask(Health())
    assert len(desk.commands()) == 1
