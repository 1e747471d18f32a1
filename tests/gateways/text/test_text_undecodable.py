"""Stored messages that can't be decoded, over the text protocol."""

from __future__ import annotations

import pytest

import oncemq
from oncemq.protocol.commands import Put
from tests.client.test_undecodable import BAD, envelope, send
from tests.gateways.text.rig import GatewayThread


@pytest.mark.parametrize("request_id", ["", "id-1"])
def test_a_get_names_them_and_a_seek_skips_them(request_id: str) -> None:
    gateway = GatewayThread()
    try:
        text = gateway.client()
        text.ask("sub orders alice")
        get = f"{request_id}\nget\nalice\norders" if request_id else "get orders alice"
        with oncemq.connect(gateway.broker) as client:
            send(client, Put("orders", envelope(BAD)), BAD)
            client.put("orders", b"behind")
            for _ in range(2):
                assert text.ask(get).startswith("ERROR UNDECODABLE offset 0 of 'orders' can't be decoded: ")
            client.seek("orders", "alice", 1)
            assert text.ask(get) == "OK behind"
    finally:
        gateway.stop()
