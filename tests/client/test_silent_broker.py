"""A broker that answers hellos and nothing else, as one whose database is full: every call ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

import oncemq
import oncemq.aio
from oncemq.protocol import commands, errors
from oncemq.protocol.frames import decode_request, encode_response
from oncemq.protocol.replies import HelloReply

_FAST: dict[str, Any] = {"timeout_s": 0.03, "tries": 3}


class SilentBroker:
    def __init__(self) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self.url = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            if self._socket.poll(20):
                peer, *frames = self._socket.recv_multipart()
                with suppress(errors.OnceMQError):
                    request, _ = decode_request(frames)
                    if isinstance(request.commands[0], commands.Hello):
                        reply = HelloReply(1, 0, 64, (), "broker")
                        self._socket.send_multipart([peer, *encode_response(request.request_id, [reply])])

    def close(self) -> None:
        self._is_stopped.set()
        self._thread.join()
        self._socket.close(0)


@pytest.fixture
def broker() -> Iterator[SilentBroker]:
    broker = SilentBroker()
    yield broker
    broker.close()


def _put_in_transaction(client: oncemq.Client) -> None:
    with client.transaction() as transaction:
        transaction.put("t", b"x")


def _put_later(client: oncemq.Client) -> None:
    handle = client.put_nowait("t", b"x")
    with suppress(errors.BrokerAway):
        client.flush()
    handle.result()


_CALLS: dict[str, Callable[[oncemq.Client], object]] = {
    "put": lambda client: client.put("t", b"x"),
    "put_many": lambda client: client.put_many("t", [b"x", b"y"]),
    "put_nowait": _put_later,
    "transaction": _put_in_transaction,
    "subscribe": lambda client: client.subscribe("t", "s"),
    "subscribe by pattern": lambda client: client.subscribe_pattern("t.*", "s"),
    "shared subscription": lambda client: client.subscribe_shared("t", "s"),
    "create_topic": lambda client: client.create_topic("t"),
    "topics": lambda client: list(client.topics()),
    "read": lambda client: list(client.read("t")),
}


@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
def test_every_call_raises_broker_away(broker: SilentBroker, call: Callable[[oncemq.Client], object]) -> None:
    client = oncemq.connect(broker.url, **_FAST)
    with pytest.raises(errors.BrokerAway):
        call(client)
    with suppress(errors.OnceMQError):
        client.close()


def test_every_call_of_an_asyncio_client_raises_broker_away(broker: SilentBroker) -> None:
    async def run() -> None:
        client = await oncemq.aio.connect(broker.url, **_FAST)
        for call in (client.put("t", b"x"), client.subscribe("t", "s"), client.topics()):
            with pytest.raises(errors.BrokerAway):
                await asyncio.wait_for(call, 30)
        with suppress(errors.OnceMQError):
            await client.close()

    asyncio.run(run())


def test_an_outbox_keeps_what_is_not_answered(broker: SilentBroker, tmp_path: Path) -> None:
    client = oncemq.connect(broker.url, outbox=tmp_path / "outbox", **_FAST)
    client.put("t", b"x")
    with pytest.raises(errors.BrokerAway):
        client.create_topic("t")
    assert client.pending == 2
    client.close()
