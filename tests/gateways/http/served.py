"""A gateway with a real socket in the process of the tests, and clients that write and read bytes as they like."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import httpx
import uvloop

from oncemq.gateways.http.gateway import HttpGateway
from oncemq.gateways.http.settings import GatewaySettings

TIMEOUT_S = 30
_numbers = itertools.count(1)

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test on the event loop that gateways use, with a time limit."""

    async def limited() -> T:
        async with asyncio.timeout(2 * TIMEOUT_S):
            return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(limited())


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def write(self, *parts: bytes) -> None:
        for part in parts:
            self._writer.write(part)

    async def write_apart(self, *parts: bytes) -> None:
        """Write parts that arrive one by one."""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            await asyncio.sleep(0.01)

    async def write_until_closed(self, part: bytes) -> bytes:
        """Write a part again and again. Return what comes before the connection is closed."""
        ended = asyncio.ensure_future(self.until_closed())
        with contextlib.suppress(ConnectionError):
            while not ended.done():
                await self.write_apart(part)
        return await ended

    async def response(self) -> tuple[int, bytes]:
        """Return the status and the body of the next response."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        return int(head.split(b" ")[1]), await self._reader.readexactly(int(fields.get(b"content-length", b"0")))

    async def read_until(self, end: bytes) -> bytes:
        return await self._reader.readuntil(end)

    async def until_closed(self) -> bytes:
        """Return what comes before the connection is closed."""
        received = b""
        with contextlib.suppress(ConnectionError):
            while part := await self._reader.read(1 << 16):
                received += part
        return received

    def close(self) -> None:
        self._writer.close()

    async def wait_closed(self) -> None:
        await self._writer.wait_closed()

    def abort(self) -> None:
        """End the connection as when the client is killed."""
        self._writer.transport.abort()


class Served:
    """A gateway, and its broker in memory."""

    def __init__(self, gateway: HttpGateway) -> None:
        self.gateway = gateway
        self.url = gateway.addresses[0]
        self.client = httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S, trust_env=False)
        self._peers: list[Peer] = []

    async def peer(self, *parts: bytes, limit_bytes: int = 1 << 16) -> Peer:
        """Connect, and write. `limit_bytes`: what is read ahead of the test."""
        port = int(self.url.rpartition(":")[2])
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port, limit=limit_bytes))
        self._peers.append(peer)
        peer.write(*parts)
        return peer

    async def status(self, path: str = "/v1/topics") -> int:
        """Return the status of a new client's request."""
        async with httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S, trust_env=False) as client:
            return (await client.get(path)).status_code

    async def close(self) -> None:
        await self.client.aclose()
        for peer in self._peers:
            peer.close()
        await self.gateway.stop()


@contextlib.asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Served]:
    broker = f"memory:served-{next(_numbers)}"
    gateway = HttpGateway(GatewaySettings(**{"brokers": (broker,), "http": "127.0.0.1:0", **settings}))
    await gateway.start()
    served = Served(gateway)
    try:
        yield served
    finally:
        await served.close()


async def eventually(is_true: Any) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not is_true():
            await asyncio.sleep(0.005)
