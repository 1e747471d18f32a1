"""Stored messages that can't be decoded, over the HTTP queue."""

from __future__ import annotations

import oncemq
from oncemq.protocol.commands import Put
from tests.client.test_undecodable import BAD, envelope, send
from tests.gateways.http.queue import Queue, queue

__all__ = ["queue"]


def test_a_consume_names_them_and_a_seek_or_a_position_skips_them(queue: Queue) -> None:
    queue.populate()
    with oncemq.connect(queue.broker) as client:
        for value in (b"one", b"two"):
            send(client, Put("T1", envelope(BAD)), BAD)
            client.put("T1", value)
        assert queue.cant_consume() == (500, "UNDECODABLE")
        assert queue.cant_consume(position=0) == (500, "UNDECODABLE")
        assert queue.cant_consume(key="key-1") == (500, "UNDECODABLE")
        client.seek("T1", "C1", 1)
        assert queue.consume() == "one"
        assert queue.cant_consume() == (500, "UNDECODABLE")
        assert queue.consume(position=3) == "two"
