"""A network that cheats does it so well that neither side complains: only the verdict can notice."""

from __future__ import annotations

import pytest

from oncemq.protocol import commands, replies
from oncemq.protocol.batch import checksum, decode_batch, encode_batch
from oncemq.protocol.frames import decode_request, decode_response, encode_request, encode_response
from oncemq.tools.chaos.sabotage import Doubler, Honest, Liar, Swapper, middle_for

BATCH = encode_batch([b"a", b"b"])
NUMBERS = range(1, 31)


def put(number: int) -> list[bytes]:
    operation = commands.Put("t", commands.Envelope(2, len(BATCH), checksum(BATCH)))
    frames = encode_request(number, [commands.Numbered("session", 1, number, 1, operation)], [BATCH])
    return [bytes(frame) for frame in frames]


def answer(request: list[bytes]) -> list[bytes]:
    """As a broker would."""
    [command], request_id = decode_request(request)[0].commands, decode_request(request)[0].request_id
    assert isinstance(command, commands.Numbered)
    is_put = isinstance(command.operation, commands.Put)
    reply: replies.Reply = replies.PutReply(1, command.number, 2, 3, 4) if is_put else replies.Done()
    return [bytes(frame) for frame in encode_response(request_id, [reply])]


def through(middle: Honest, number: int) -> tuple[bool, replies.Reply]:
    """Whether the broker got the message, and what the client was told."""
    passed = list(middle.request(b"client", put(number)))
    told = list(middle.reply(b"client", answer(passed)))
    [reply] = decode_response(told)[0].replies
    return len(passed) > 1, reply


def test_an_honest_network_changes_nothing() -> None:
    assert all(through(middle_for(None, ""), number)[0] for number in NUMBERS)


def test_a_liar_answers_puts_that_the_broker_never_saw_and_sticks_to_it() -> None:
    middle = Liar()
    stored = {number: through(middle, number) for number in NUMBERS}
    assert 0 < sum(not got for got, _ in stored.values()) < len(stored)
    for number, (got, told) in stored.items():
        assert isinstance(told, replies.PutReply)
        assert through(middle, number)[0] == got


def test_a_liar_keeps_to_its_story_when_a_client_reconnects() -> None:
    middle = Liar()
    lost = next(number for number in NUMBERS if not through(middle, number)[0])
    middle.request(b"client", [bytes(frame) for frame in encode_request(99, [commands.Hello("session", 1, 0, 64)])])
    reply = replies.HelloReply(1, lost, 64, ((lost, replies.Done()),), "broker")
    told = middle.reply(b"client", [bytes(frame) for frame in encode_response(99, [reply])])
    [hello] = decode_response(list(told))[0].replies
    assert isinstance(hello, replies.HelloReply)
    assert isinstance(hello.verdicts[0][1], replies.PutReply)


def test_a_doubler_stores_some_messages_once_more() -> None:
    doubled: list[tuple[str, list[bytes]]] = []
    middle = Doubler(lambda topic, values: doubled.append((topic, values)))
    assert all(through(middle, number)[0] for number in NUMBERS)
    assert 0 < len(doubled) < len(NUMBERS)
    assert set(map(str, doubled)) == {str(("t", [b"a", b"b"]))}


@pytest.fixture
def given() -> list[bytes]:
    head = replies.BatchHead(0, 2, 0, 0, checksum(BATCH))
    return [bytes(frame) for frame in encode_response(1, [replies.GetReply(1, 2, 2, 0, (head,))], [BATCH])]


def test_a_swapper_turns_a_batch_around_and_mends_its_checksum(given: list[bytes]) -> None:
    response, [[payload]] = decode_response(list(Swapper().reply(b"client", given)))
    [reply] = response.replies
    assert isinstance(reply, replies.GetReply)
    assert [message.value for message in decode_batch(bytes(payload), "t", 1, 0, 0, 0, 2)] == [b"b", b"a"]
    assert reply.batches[0].checksum == checksum(payload)
