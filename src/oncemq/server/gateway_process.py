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

from oncemq.gateways.contract import Gateway
from oncemq.gateways.tasks import handle_loop_failure
from oncemq.net import kernel
from oncemq.net.descriptors import raise_limit
from oncemq.protocol import errors

#: prctl: the signal that this process gets when its parent ends.
_PR_SET_PDEATHSIG = 1
#: How often freed memory is returned, if there is at least so much more of it than the last time.
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
    failed = asyncio.Event()

    def fail() -> None:
        failed.set()
        stopped.set()

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(handle_loop_failure)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, _reload, gateways)
    async with AsyncExitStack() as started:
        for gateway in gateways:
            gateway.on_failure = fail
            await gateway.start()
            started.push_async_callback(gateway.stop)
        started.callback(_FreedMemory(loop).stop)
        announce([address for gateway in gateways for address in gateway.addresses])
        await stopped.wait()
    return errors.OnceMQError.exit_code if failed.is_set() else 0


def _reload(gateways: Sequence[Gateway]) -> None:
    """Use new certificates and keys for new connections, where there are any."""
    for gateway in gateways:
        reload = getattr(gateway, "reload", None)
        if reload is not None:
            reload()


class _FreedMemory:
    """Returns freed memory to the system. Without it, the C library keeps what was allocated in a peak of requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        kernel.return_large_blocks()
        self._kept = kernel.kept_bytes()
        self._timer = loop.call_later(_TRIM_EVERY_S, self._trim)

    def stop(self) -> None:
        self._timer.cancel()

    def _trim(self) -> None:
        kept = kernel.kept_bytes()
        self._kept = min(self._kept, kept)
        if kept > self._kept + _TRIM_BYTES:
            kernel.return_free_memory()
            self._kept = kernel.kept_bytes()
        self._timer = self._loop.call_later(_TRIM_EVERY_S, self._trim)


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
