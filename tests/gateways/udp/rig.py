"""A datagram gateway for tests: in a thread, or in a process that can be killed; and a plain client of it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from oncemq.gateways.subscription import OpenSubscription
from oncemq.gateways.udp.gateway import UdpGateway
from oncemq.gateways.udp.settings import UdpSettings
from oncemq.testing.broker_process import free_port
from tests.gateways.hosts import TIMEOUT_S, LoopThread, ProcessHost

Address = tuple[str, int]


def settings_for_tests(**changes: Any) -> UdpSettings:
    return msgspec.structs.replace(UdpSettings(listen=f"127.0.0.1:{free_port()}", wait_ms=300), **changes)


def wait_until(is_so: Callable[[], bool], what: str = "it") -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < until_s, f"{what} does not happen"
        time.sleep(0.005)


def note_gets(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the positions of all gets from now on."""
    positions: list[int] = []
    get = OpenSubscription.get

    async def note(self: OpenSubscription, position: int, *rest: Any) -> Any:
        positions.append(position)
        return await get(self, position, *rest)

    monkeypatch.setattr(OpenSubscription, "get", note)
    return positions


class GatewayThread:
    """A gateway in a thread."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
        is_plain: bool = True,
        **changes: Any,
    ) -> None:
        """`is_plain`: plain packets are served."""
        self.settings = settings_for_tests(**changes)
        self.address: Address = (self.settings.host, self.settings.port)
        self.gateway = UdpGateway(urls, self.settings)
        self._thread = LoopThread(make_loop)
        self._thread.call(self.gateway.start())
        if is_plain:
            wait_until(lambda: self.gateway._plain.is_ready, "the registry is read")

    def counter(self, name: str) -> int:
        return self.gateway.counters().get(name, 0)

    def stop(self) -> None:
        self._thread.call(self.gateway.stop())
        self._thread.stop()


class GatewayProcess(ProcessHost):
    def __init__(self, urls: Sequence[str], **changes: Any) -> None:
        self.settings = settings_for_tests(**changes)
        self.address: Address = (self.settings.host, self.settings.port)
        super().__init__(UdpGateway, tuple(urls), self.settings)


class PlainClient:
    """A client with one socket, like S4's clients."""

    def __init__(self, gateway: Address) -> None:
        self.gateway = gateway
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(TIMEOUT_S)

    @property
    def address(self) -> Address:
        host, port = self.socket.getsockname()
        return host, port

    def send(self, packet: str | bytes) -> None:
        self.socket.sendto(packet.encode() if isinstance(packet, str) else packet, self.gateway)

    def receive(self) -> bytes:
        return self.socket.recv(65_536)

    def ask(self, packet: str | bytes) -> str:
        self.send(packet)
        return self.receive().decode()

    def insist(self, packet: str) -> str:
        """Send a packet every second until there is a reply: a flooded socket drops packets."""
        self.socket.settimeout(1)
        try:
            for _ in range(int(TIMEOUT_S)):
                with suppress(TimeoutError):
                    return self.ask(packet)
        finally:
            self.socket.settimeout(TIMEOUT_S)
        raise TimeoutError(f"no reply to '{packet}'")

    def close(self) -> None:
        self.socket.close()
