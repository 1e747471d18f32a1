"""Text requests that are sent to the native listener get a reply that their senders can read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from oncemq.protocol import replies
from oncemq.protocol.errors import Malformed
from oncemq.protocol.frames import decode_response, encode_refusal
from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.processes import SMALL
from tests.forking import ForkedBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with ForkedBroker(tmp_path / "data", *SMALL, transport="zeromq") as broker:
        yield broker


@pytest.fixture(params=[zmq.REQ, zmq.DEALER])
def peer(request: pytest.FixtureRequest, broker: BrokerProcess) -> Iterator[Any]:
    socket: Any = zmq.Context.instance().socket(request.param)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, 10_000)
    socket.connect(broker.url)
    yield socket
    socket.close(0)


def test_a_text_request_gets_a_hint_in_plain_text_and_is_logged_once(peer: Any, broker: BrokerProcess) -> None:
    for request in (b"put orders one pizza", b"sub orders me", b"17\nput\nme\norders\none pizza"):
        peer.send(request)
        reply = peer.recv_multipart()
        assert len(reply) == 1
        assert reply[0].startswith(b"ERROR MALFORMED ")
        assert b"--text" in reply[0]
    assert broker.log_path.read_text(encoding="utf-8").count("text requests to the native listener") == 1


@pytest.mark.parametrize("frames", [[b"what?"], [b""], [b"", b"\x93\x01"], [b"putting"], [b"put x", b"more"]])
def test_a_malformed_native_request_gets_its_refusal(frames: list[bytes]) -> None:
    response, _ = decode_response(encode_refusal(frames, Malformed("it is not a request")))
    assert response.replies == (replies.Refusal("MALFORMED", "it is not a request"),)
