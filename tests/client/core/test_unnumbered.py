"""Commands without a number of this session: queries, and operations under a key or of another session."""

from __future__ import annotations

import pytest

from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.commands import Ack, Command, Envelope, Get, Health, Keyed, Numbered, Put, Topics
from oncemq.protocol.replies import AckReply, NotNow, PutReply, Refusal
from tests.client.core.rig import CoreRig, stored

PAYLOAD = encode_batch([b"one pizza"])
PUT = Put("orders", Envelope(1, len(PAYLOAD), checksum(PAYLOAD)))


def keyed(rig: CoreRig, key: str = "k") -> Pending:
    return rig.core.ask(Keyed("web", key, PUT), PAYLOAD)


def test_what_brings_no_messages_shares_a_request() -> None:
    rig = CoreRig()
    get = Get(5, "kitchen", 1, 0, 1000)
    questions: list[Command] = [Ack(5, "kitchen", 1, 3), get, Topics(), get, Ack(6, "bar", 1, 4)]
    pendings = [rig.core.ask(question) for question in questions]
    requests = rig.sent()
    assert [request.commands for request in requests] == [
        (get,),
        (get,),
        (questions[0], questions[2], questions[4]),
    ]
    rig.answer(requests[2], AckReply(3), Refusal("NAME_INVALID", "no"), AckReply(4))
    assert [pending.done for pending in pendings] == [True, False, True, False, True]
    assert pendings[4].result() == AckReply(4)


def test_an_operation_under_a_key_carries_its_payload_and_is_sent_again_as_it_is() -> None:
    rig = CoreRig()
    pendings = [keyed(rig, "a"), keyed(rig, "b")]
    [request] = rig.sent()
    assert [command.key for command in request.commands if isinstance(command, Keyed)] == ["a", "b"]
    assert rig.payloads[-1] == [(PAYLOAD,), (PAYLOAD,)]
    assert rig.pass_ms(1500)
    [again] = rig.sent()
    assert (again.commands, rig.payloads[-1]) == (request.commands, [(PAYLOAD,), (PAYLOAD,)])
    rig.answer(again, stored(3), stored(4))
    assert [pending.result() for pending in pendings] == [stored(3), stored(4)]


def test_a_refused_request_is_sent_again_command_by_command() -> None:
    rig = CoreRig()
    pendings = [keyed(rig, key) for key in "abc"]
    [request] = rig.sent()
    rig.answer(request, Refusal("MALFORMED", "one of them"))
    alone = rig.sent()
    assert [len(request.commands) for request in alone] == [1, 1, 1]
    for offset, request in enumerate(alone):
        rig.answer(request, stored(offset))
    assert all(isinstance(pending.result(), PutReply) for pending in pendings)


def test_somebody_elses_fence_and_gap_are_theirs() -> None:
    rig = CoreRig()
    rig.greet()
    pendings = [rig.core.ask(Numbered("shop", 1, number, number, PUT), PAYLOAD) for number in (4, 5)]
    [request] = rig.sent()
    rig.answer(request, Refusal("FENCED", "another one"), NotNow("GAP", "3 is next", 2))
    with pytest.raises(errors.Fenced):
        pendings[0].result()
    with pytest.raises(errors.Gap):
        pendings[1].result()
    assert rig.core.finished is None


def test_a_payload_that_does_not_belong_is_refused_before_it_is_sent() -> None:
    rig = CoreRig()
    with pytest.raises(errors.Malformed):
        rig.core.ask(Keyed("web", "k", PUT), b"another")
    rig.core._session.batch_bytes_max = 10
    with pytest.raises(errors.TooLarge):
        keyed(rig).result()
    rig.core.ask(Health())
    assert len(rig.commands()) == 1
