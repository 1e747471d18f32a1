"""A text gateway for tests: in a thread, or in a process that can be killed; and plain ZeroMQ clients of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import zmq

from oncemq.client.credentials import CurveKeys
from oncemq.gateways.text.gateway import TextGateway
from oncemq.gateways.text.settings import TextSettings
from oncemq.testing.broker_process import free_url
from tests.gateways.hosts import TIMEOUT_S, LoopThread, ProcessHost
from tests.secured_broker import use_keys

_numbers = itertools.count(1)

T = TypeVar("T")


class Req:
    """A REQ socket, as any language has one. `timeout_s` is how long it waits for a reply."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S, keys: CurveKeys | None = None) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.REQ)
        if keys is not None:
            use_keys(self._socket, keys)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, int(timeout_s * 1000))
        self._socket.connect(url)

    def ask(self, request: str | bytes) -> str:
        return self.ask_bytes(request).decode()

    def ask_bytes(self, request: str | bytes) -> bytes:
        """Raises zmq.Again."""
        self._socket.send(request.encode() if isinstance(request, str) else request)
        frames = self._socket.recv_multipart()
        assert len(frames) == 1, "a reply is one text"
        return frames[0]

    def code(self, request: str | bytes) -> str:
        """Return the code of an error."""
        word, code, text = self.ask(request).split(" ", 2)
        assert word == "ERROR"
        assert text
        return code

    def lines(self, *lines: str) -> str:
        return self.ask("\n".join(lines))

    def code_of_lines(self, *lines: str) -> str:
        return self.code("\n".join(lines))

    def close(self) -> None:
        self._socket.close(0)


@contextmanager
def dealing(url: str, received_max: int = 1000, name: bytes = b"", keys: CurveKeys | None = None) -> Iterator[Any]:
    """A DEALER socket that receives at most `received_max` replies before they are read."""
    socket: Any = zmq.Context.instance().socket(zmq.DEALER)
    if keys is not None:
        use_keys(socket, keys)
    if name:
        socket.setsockopt(zmq.IDENTITY, name)
    socket.setsockopt(zmq.RCVHWM, received_max)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, int(TIMEOUT_S * 1000))
    socket.connect(url)
    yield socket
    socket.close(0)


class GatewayThread:
    """A gateway in a thread; without a broker's address it uses a broker of its own in memory."""

    def __init__(self, broker: str = "", **settings: Any) -> None:
        self.broker = broker or f"memory:text-{next(_numbers)}"
        self._thread = LoopThread()
        self._clients: list[Req] = []
        self.gateway = TextGateway([self.broker], TextSettings(listen="tcp://127.0.0.1:*", **settings))
        self.call(self.gateway.start)
        self.url = self.gateway.addresses[0]

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function on the gateway's loop."""
        return self._thread.call(work())

    def client(self, keys: CurveKeys | None = None) -> Req:
        client = Req(self.url, keys=keys)
        self._clients.append(client)
        return client

    def forget_everything(self) -> None:
        """Make the gateway forget its caches, as a restart would: what it must know is in the broker."""
        self.gateway._servers.__init__(self.gateway._servers._link)  # type: ignore[misc]

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self.call(self.gateway.stop)
        self._thread.stop()


class GatewayProcess(ProcessHost):
    def __init__(self, brokers: Sequence[str]) -> None:
        self.url = free_url("zeromq")
        super().__init__(TextGateway, tuple(brokers), TextSettings(listen=self.url))
