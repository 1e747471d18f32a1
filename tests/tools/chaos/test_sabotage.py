"""Sabotage causes no error on either side: only the verdict can notice it."""

from __future__ import annotations

import pytest

from oncemq.protocol import commands, replies
from oncemq.protocol.batch import checksum, decode_batch, encode_batch
from oncemq.protocol.frames import decode_request, decode_response, encode_request, encode_response
from oncemq.tools.chaos.sabotage import BatchReverser, PacketFilter, PutDuplicator, PutLoser, packet_filter_for

BATCH = encode_batch([b"a", b"b"])
NUMBERS = range(1, 31)


def put(number: int) -> list[bytes]:
    operation = commands.Put("t", commands.Envelope(2, len(BATCH), checksum(BATCH)))
    frames = encode_request(number, [commands.Numbered("session", 1, number, 1, operation)], [BATCH])
    return [bytes(frame) for frame in frames]


def answer(request: list[bytes]) -> list[bytes]:
    """Return the answer of a broker."""
    [command], request_id = decode_request(request)[0].commands, decode_request(request)[0].request_id
    assert isinstance(command, commands.Numbered)
    is_put = isinstance(command.operation, commands.Put)
    reply: replies.Reply = replies.PutReply(1, command.number, 2, 3, 4) if is_put else replies.Done()
    return [bytes(frame) for frame in encode_response(request_id, [reply])]


def through(packet_filter: PacketFilter, number: int) -> tuple[bool, replies.Reply]:
    """Return whether the broker got the message, and the reply to the client."""
    passed = list(packet_filter.request(b"client", put(number)))
    reply_frames = list(packet_filter.reply(b"client", answer(passed)))
    [reply] = decode_response(reply_frames)[0].replies
    return len(passed) > 1, reply


def test_without_sabotage_nothing_is_changed() -> None:
    assert all(through(packet_filter_for(None, ""), number)[0] for number in NUMBERS)


def test_a_lost_put_is_acknowledged_although_the_broker_never_saw_it_and_so_are_its_retries() -> None:
    packet_filter = PutLoser()
    stored = {number: through(packet_filter, number) for number in NUMBERS}
    assert 0 < sum(not got for got, _ in stored.values()) < len(stored)
    for number, (got, reply) in stored.items():
        assert isinstance(reply, replies.PutReply)
        assert through(packet_filter, number)[0] == got


def test_a_lost_put_stays_acknowledged_when_a_client_reconnects() -> None:
    packet_filter = PutLoser()
    lost = next(number for number in NUMBERS if not through(packet_filter, number)[0])
    packet_filter.request(
        b"client", [bytes(frame) for frame in encode_request(99, [commands.Hello("session", 1, 0, 64)])]
    )
    reply = replies.HelloReply(1, lost, 64, ((lost, replies.Done()),), "broker")
    reply_frames = packet_filter.reply(b"client", [bytes(frame) for frame in encode_response(99, [reply])])
    [hello] = decode_response(list(reply_frames))[0].replies
    assert isinstance(hello, replies.HelloReply)
    assert isinstance(hello.verdicts[0][1], replies.PutReply)


def test_duplicated_puts_are_stored_a_second_time() -> None:
    duplicated: list[tuple[str, list[bytes]]] = []
    packet_filter = PutDuplicator(lambda topic, values: duplicated.append((topic, values)))
    assert all(through(packet_filter, number)[0] for number in NUMBERS)
    assert 0 < len(duplicated) < len(NUMBERS)
    assert set(map(str, duplicated)) == {str(("t", [b"a", b"b"]))}


@pytest.fixture
def given() -> list[bytes]:
    head = replies.BatchHead(0, 2, 0, 0, checksum(BATCH))
    return [bytes(frame) for frame in encode_response(1, [replies.GetReply(1, 2, 2, 0, (head,))], [BATCH])]


def test_a_reversed_batch_has_a_valid_checksum(given: list[bytes]) -> None:
    response, [[payload]] = decode_response(list(BatchReverser().reply(b"client", given)))
    [reply] = response.replies
    assert isinstance(reply, replies.GetReply)
    assert [message.value for message in decode_batch(bytes(payload), "t", 1, 0, 0, 0, 2)] == [b"b", b"a"]
    assert reply.batches[0].checksum == checksum(payload)
