"""Run a gateway for tests: in a thread, or in a process that can be killed and started again at the same address."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from oncemq.gateways.contract import Gateway
from oncemq.server.gateway_process import run
from tests import forking
from tests.acceptance.processes import resident_bytes

TIMEOUT_S = 30.0

assert forking  # Its import configures the fork server.
_server = multiprocessing.get_context("forkserver")

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
        self._loop = make_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


class ProcessHost:
    """A process that runs the gateway that `make(*arguments)` returns."""

    def __init__(self, make: Callable[..., Gateway], *arguments: Any) -> None:
        self._make = make
        self._arguments = arguments
        self._process: Any = None

    def start(self) -> list[str]:
        """Start the process. Returns the gateway's addresses."""
        started, its_end = _server.Pipe()
        self._process = _server.Process(target=_serve, args=(self._make, self._arguments, its_end), daemon=True)
        self._process.start()
        its_end.close()
        assert started.poll(TIMEOUT_S), "the gateway does not start"
        addresses: list[str] = started.recv()
        started.close()
        return addresses

    def kill(self) -> None:
        if self.is_alive():
            self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop the gateway. Returns the exit code."""
        return self._end(signal.SIGTERM)

    def restart(self) -> None:
        self.kill()
        self.start()

    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    @property
    def memory_bytes(self) -> int:
        """The process's resident memory."""
        return resident_bytes(self._process.pid)

    def _end(self, number: int) -> int:
        if self._process.exitcode is None:
            os.kill(self._process.pid, number)
        self._process.join(TIMEOUT_S)
        return int(self._process.exitcode)


def _serve(make: Callable[..., Gateway], arguments: tuple[Any, ...], started: Any) -> None:
    os._exit(run([make(*arguments)], started.send))
