"""Runs gateways in a process of their own, until a signal or the end of the parent process ends it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from oncemq.gateways.contract import Gateway
from oncemq.net.descriptors import raise_limit

#: prctl: the signal that this process gets when its parent ends.
_PR_SET_PDEATHSIG = 1
#: mallopt: blocks of at least this size are returned to the system when they are freed.
_M_MMAP_THRESHOLD = -3
_RETURNED_BYTES = 256 * 1024
#: How often smaller blocks are returned, if the process has grown by so much.
_TRIM_EVERY_S = 10.0
_TRIM_BYTES = 32 * 2**20


def run(gateways: Sequence[Gateway], announce: Callable[[list[str]], None], *, with_parent: bool = False) -> int:
    """Run the gateways and return the exit code. `announce` is called with their addresses. `with_parent` means that
    standard input is a pipe from the parent process, and that its end ends this process. Raise ListenFailed."""
    raise_limit()
    if with_parent:
        _end_with_parent()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(gateways, announce))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return that of uvloop, which is faster, if it is installed (the extra `http` includes it)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(gateways: Sequence[Gateway], announce: Callable[[list[str]], None]) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with AsyncExitStack() as started:
        for gateway in gateways:
            await gateway.start()
            started.push_async_callback(gateway.stop)
        started.callback(_FreedMemory(loop).stop)
        announce([address for gateway in gateways for address in gateway.addresses])
        await stopped.wait()
    return 0


class _FreedMemory:
    """Returns freed memory to the system. Without it, the C library keeps what was allocated in a peak of requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        # Other C libraries have neither function, and return memory by themselves.
        if hasattr(self._library, "mallopt") and hasattr(self._library, "malloc_trim"):
            self._library.mallopt(_M_MMAP_THRESHOLD, _RETURNED_BYTES)
            self._trim()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _trim(self) -> None:
        if _resident_bytes() > self._size + _TRIM_BYTES:
            self._library.malloc_trim(0)
            self._size = _resident_bytes()
        self._timer = self._loop.call_later(_TRIM_EVERY_S, self._trim)


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _end_with_parent() -> None:
    """End this process when the parent ends, even if the event loop is busy. Open requests can't be answered without
    the parent, and the next broker needs the ports, so nothing is drained."""
    threading.Thread(target=_wait_for_end_of_stdin, name="oncemq-parent", daemon=True).start()
    if sys.platform == "linux":
        # The kernel is faster than a thread that must wait for the interpreter.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for_end_of_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)
