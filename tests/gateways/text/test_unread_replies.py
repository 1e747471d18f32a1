"""Peers that do not read their replies."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.acceptance.processes import wait_until
from tests.gateways.text.rig import GatewayThread, dealing


@pytest.fixture
def gateway() -> Iterator[GatewayThread]:
    gateway = GatewayThread()
    yield gateway
    gateway.stop()


def test_nothing_is_got_for_a_peer_that_does_not_read_its_replies(
    gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = gateway.client()
    client.ask("sub orders alice")
    client.ask("put orders x")
    peers = gateway.gateway._peers
    answered: list[bytes] = []
    answer, is_blocked = peers._answer, threading.Event()

    async def note(body: list[bytes], caller: str) -> bytes:
        answered.append(body[0])
        return await answer(body, caller)

    monkeypatch.setattr(peers, "_answer", note)
    monkeypatch.setattr(
        peers._socket, "is_reading", lambda peer: peer != b"unread" or not is_blocked.is_set(), raising=False
    )
    with dealing(gateway.url, name=b"unread") as dealer:
        is_blocked.set()
        dealer.send(b"get orders alice")
        wait_until(lambda: peers._requests == 1, "the request arrives")
        assert client.ask("put orders y") == "OK STORED 1"
        assert answered == [b"put orders y"]
        is_blocked.clear()
        assert dealer.recv() == b"OK x"


def test_a_reply_that_is_dropped_is_counted_and_a_request_that_waits_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = GatewayThread(patience_ms=1)
    try:
        socket = gateway.gateway._peers._socket
        questions: list[bytes] = []

        def is_reading(peer: bytes) -> bool:
            """The third question is the first one after the request was performed."""
            questions.append(peer)
            return len(questions) == 2

        assert socket._listener is not None
        monkeypatch.setattr(socket._listener, "is_reading", is_reading)
        with dealing(gateway.url) as dealer:
            dealer.send(b"sub orders alice")
            counters = gateway.gateway._peers.counters
            wait_until(lambda: bool(counters.counts), "the reply is dropped")
        assert counters.counts == {"replies_dropped": 1}
        assert len(questions) > 3
    finally:
        gateway.stop()
