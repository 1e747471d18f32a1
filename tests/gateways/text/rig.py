"""A text gateway for tests: in a thread, or in a process that can be killed; and plain ZeroMQ clients of it."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import zmq

from oncemq.gateways.text.gateway import TextGateway
from oncemq.gateways.text.settings import TextSettings
from oncemq.server.gateway_process import run
from oncemq.testing.broker_process import free_url
from tests import forking

TIMEOUT_S = 30.0

assert forking  # It says what the server of forks has imported.
_server = multiprocessing.get_context("forkserver")
_numbers = itertools.count(1)

T = TypeVar("T")


class Req:
    """A REQ socket, as any language has one. `timeout_s` is how long it waits for a reply."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.REQ)
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
        """Of an error."""
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
def dealing(url: str, received_max: int = 1000) -> Iterator[Any]:
    """A DEALER socket. Replies beyond so many stay on their way."""
    socket: Any = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVHWM, received_max)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, int(TIMEOUT_S * 1000))
    socket.connect(url)
    yield socket
    socket.close(0)


class GatewayThread:
    """A gateway beside the test, on an event loop of its own; with no broker named, on one of its own in memory."""

    def __init__(self, broker: str = "", **settings: Any) -> None:
        self.broker = broker or f"memory:text-{next(_numbers)}"
        self._settings = TextSettings(listen="tcp://127.0.0.1:*", **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._clients: list[Req] = []
        self._begin()

    def _begin(self) -> None:
        self.gateway = TextGateway([self.broker], self._settings)
        self.call(self.gateway.start)
        self.url = self.gateway.addresses[0]

    def call(self, work: Callable[[], Any]) -> Any:
        """On the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(TIMEOUT_S)

    def client(self) -> Req:
        client = Req(self.url)
        self._clients.append(client)
        return client

    def forget_everything(self) -> None:
        """As a gateway that starts anew: what it must know is in the broker."""
        self.gateway._server.__init__(self.gateway._link)  # type: ignore[misc]

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self.call(self.gateway.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


class GatewayProcess:
    """A gateway in a process of its own: killed, and started again at the same address."""

    def __init__(self, brokers: Sequence[str]) -> None:
        self.url = free_url()
        self._arguments = (tuple(brokers), TextSettings(listen=self.url))
        self._process: Any = None

    def start(self) -> None:
        listening, its_end = _server.Pipe()
        self._process = _server.Process(target=_serve, args=(*self._arguments, its_end), daemon=True)
        self._process.start()
        its_end.close()
        assert listening.poll(TIMEOUT_S), "the gateway does not start"
        assert listening.recv() == [self.url]
        listening.close()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def restart(self) -> None:
        self.kill()
        self.start()

    def _end(self, number: int) -> int:
        if self._process.exitcode is None:
            os.kill(self._process.pid, number)
        self._process.join(TIMEOUT_S)
        return int(self._process.exitcode)


def _serve(brokers: Sequence[str], settings: TextSettings, listening: Any) -> None:
    os._exit(run([TextGateway(brokers, settings)], listening.send))
