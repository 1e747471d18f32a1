"""A datagram gateway for tests: in a thread, or in a process that can be killed; and a plain client of it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from oncemq.gateways.udp.gateway import UdpGateway
from oncemq.gateways.udp.settings import UdpSettings
from oncemq.testing.broker_process import free_port
from tests import forking

TIMEOUT_S = 30.0

assert forking  # It says what the server of forks has imported.
_server = multiprocessing.get_context("forkserver")

Address = tuple[str, int]


def settings_for_tests(**changes: Any) -> UdpSettings:
    return msgspec.structs.replace(UdpSettings(listen=f"127.0.0.1:{free_port()}", wait_ms=300), **changes)


def wait_until(is_so: Callable[[], bool], what: str = "it") -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < until_s, f"{what} does not happen"
        time.sleep(0.005)


class GatewayThread:
    """A gateway beside the test, on an event loop of its own."""

    def __init__(self, urls: Sequence[str], **changes: Any) -> None:
        self.settings = settings_for_tests(**changes)
        self.address: Address = (self.settings.host, self.settings.port)
        self.gateway = UdpGateway(urls, self.settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self.gateway.start())
        wait_until(lambda: self.gateway._plain.is_ready, "the registry is read")

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def counter(self, name: str) -> int:
        return self.gateway.counters().get(name, 0)

    def stop(self) -> None:
        self._call(self.gateway.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


class GatewayProcess:
    """A gateway in a process of its own: killed, and started again at the same address."""

    def __init__(self, urls: Sequence[str], **changes: Any) -> None:
        self.urls = tuple(urls)
        self.settings = settings_for_tests(**changes)
        self.address: Address = (self.settings.host, self.settings.port)
        self._process: Any = None

    def start(self) -> None:
        listening, its_end = _server.Pipe()
        self._process = _server.Process(target=_serve, args=(self.urls, self.settings, its_end), daemon=True)
        self._process.start()
        its_end.close()
        assert listening.poll(TIMEOUT_S), "the gateway does not start"
        listening.recv()
        listening.close()

    @property
    def memory_bytes(self) -> int:
        """What it has in memory."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        if self._process is not None and self._process.exitcode is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.join()

    def restart(self) -> None:
        self.kill()
        self.start()


def _serve(urls: Sequence[str], settings: UdpSettings, listening: Any) -> None:
    async def serve() -> None:
        gateway = UdpGateway(urls, settings)
        await gateway.start()
        listening.send(gateway.addresses)
        listening.close()
        await asyncio.Event().wait()

    asyncio.run(serve())


class PlainClient:
    """One socket, as S4's clients have one."""

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
        """Stop and wait: again each second until there is a reply. A socket that is flooded drops packets."""
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
