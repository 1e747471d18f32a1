"""A real ROUTER socket gets garbage from real sockets: the broker survives, and other clients are served."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import zmq

from oncemq.protocol import commands, replies
from oncemq.protocol.frames import decode_response, encode_request
from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.processes import SMALL
from tests.forking import ForkedBroker

DEADLINE_MS = 30_000


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = ForkedBroker(tmp_path / "data", *SMALL, transport="zeromq")
    yield process
    process.kill()


@pytest.fixture
def broker(broker_process: BrokerProcess) -> Iterator[BrokerProcess]:
    broker_process.start()
    yield broker_process
    assert broker_process.is_running(), broker_process.log_tail()
    with broker_process.connect() as client:
        subscription = client.subscribe("alive", "tester")
        client.put("alive", "still")
        message = subscription.get(timeout_s=30)
        assert message is not None
        assert message.text == "still"


def _dealer(broker: BrokerProcess, kind: int = zmq.DEALER) -> zmq.Socket[bytes]:
    made: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.RCVTIMEO, DEADLINE_MS)
    made.connect(broker.url)
    return made


def _tcp(broker: BrokerProcess) -> socket.socket:
    address = urlsplit(broker.url)
    assert address.hostname is not None
    assert address.port is not None
    return socket.create_connection((address.hostname, address.port), timeout=30)


def test_garbage_from_a_dealer_is_answered_with_a_refusal(broker: BrokerProcess) -> None:
    chance = random.Random(1)
    with closing(_dealer(broker)) as dealer:
        for _ in range(200):
            frames = [chance.randbytes(chance.choice([0, 1, 5, 100, 10_000])) for _ in range(chance.randint(1, 5))]
            dealer.send_multipart(frames)
        for _ in range(200):
            [reply] = decode_response(dealer.recv_multipart())[0].replies
            assert isinstance(reply, replies.Refusal)
            assert reply.code in ("MALFORMED", "VERSION_UNSUPPORTED")
        # The same connection still accepts a valid request.
        dealer.send_multipart(encode_request(77, [commands.Health()]))
        response, _ = decode_response(dealer.recv_multipart())
        assert response.request_id == 77
        assert isinstance(response.replies[0], replies.HealthReply)


def test_each_garbage_sender_gets_its_own_answer(broker: BrokerProcess) -> None:
    dealers = [_dealer(broker) for _ in range(5)]
    try:
        for number, dealer in enumerate(dealers):
            dealer.send_multipart([*encode_request(number, [commands.Health()]), b"a frame too many"])
        for number, dealer in enumerate(dealers):
            assert decode_response(dealer.recv_multipart())[0].request_id == number
    finally:
        for dealer in dealers:
            dealer.close()


def test_a_req_socket_with_its_empty_frame_does_no_harm(broker: BrokerProcess) -> None:
    with closing(_dealer(broker, zmq.REQ)) as request:
        request.send_multipart(encode_request(1, [commands.Health()]))
        # The empty frame is not a valid request, and our reply lacks the empty frame that the socket expects.
        assert not request.poll(200)


def test_a_message_that_is_too_large_ends_its_connection_only(broker: BrokerProcess) -> None:
    with closing(_dealer(broker)) as dealer:
        dealer.send(bytes(8 * 1024 * 1024))


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00NULL" + bytes(100),
        b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x06" + struct.pack(">Q", 2**62),
        bytes(range(256)) * 40,
        b"",
    ],
    ids=["http", "tls", "half a greeting", "a huge ZMTP frame", "all bytes", "nothing"],
)
def test_a_tcp_client_that_sends_garbage_does_no_harm(broker: BrokerProcess, nonsense: bytes) -> None:
    for _ in range(3):
        with _tcp(broker) as connection:
            connection.sendall(nonsense)
