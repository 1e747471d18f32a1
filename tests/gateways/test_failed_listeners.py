"""A gateway that can't read its socket any more says so: its process ends, and is started again."""

from __future__ import annotations

import asyncio
import errno
import socket
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import zmq

from oncemq.gateways.contract import Gateway
from oncemq.gateways.push.gateway import PushGateway
from oncemq.gateways.text.gateway import TextGateway
from oncemq.gateways.text.settings import TextSettings
from oncemq.gateways.udp.endpoint import Endpoint
from oncemq.gateways.udp.gateway import UdpGateway
from oncemq.gateways.zmq_reader import ZmqReader
from tests.gateways.hosts import TIMEOUT_S
from tests.gateways.push.processes import settings_here
from tests.gateways.udp.rig import settings_for_tests


def wait_for_failure(make: Callable[[str], Gateway]) -> None:
    async def run() -> None:
        failed = asyncio.Event()
        gateway = make(f"memory:{uuid.uuid4().hex}")
        gateway.on_failure = failed.set
        await gateway.start()
        await asyncio.wait_for(failed.wait(), TIMEOUT_S)
        await gateway.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda url: TextGateway([url], TextSettings(listen="tcp://127.0.0.1:*")), zmq.ROUTER),
        (lambda url: PushGateway(url, settings_here()), zmq.SUB),
        (lambda url: PushGateway(url, settings_here()), zmq.XPUB),
        (lambda url: PushGateway(url, settings_here()), zmq.ROUTER),
    ],
    ids=["text", "publish", "feed", "acks"],
)
def test_a_zeromq_socket_that_can_not_be_read(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Gateway], kind: int
) -> None:
    read = ZmqReader._read

    def fail(self: ZmqReader) -> tuple[list[bytes], str | None]:
        if self.socket.type == kind:
            raise zmq.ZMQError(zmq.ENOTSOCK)
        return read(self)

    monkeypatch.setattr(ZmqReader, "_read", fail)
    wait_for_failure(make)


def test_a_datagram_socket_that_can_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(socket.socket):
        def recvfrom(self, *_: Any) -> Any:
            raise OSError(errno.EBADF, "broken")

    bind = Endpoint._bind

    def bind_broken(self: Endpoint, host: str, port: int) -> socket.socket:
        bound = bind(self, host, port)
        broken = Broken(bound.family, bound.type, fileno=bound.detach())
        broken.setblocking(False)
        broken.sendto(b"x", (host, port))
        return broken

    monkeypatch.setattr(Endpoint, "_bind", bind_broken)
    wait_for_failure(lambda url: UdpGateway([url], settings_for_tests()))
