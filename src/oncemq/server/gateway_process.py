"""Runs gateways in a process of their own, until a signal or the end of the parent process ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from oncemq.gateways.contract import Gateway


def run(gateways: Sequence[Gateway], announce: Callable[[list[str]], None], *, with_parent: bool = False) -> int:
    """Run the gateways and return the exit code. `announce` is called with their addresses. `with_parent` means that
    standard input is a pipe from the parent process, and that its end ends this process. Raise ListenFailed."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(gateways, announce, with_parent))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return that of uvloop, which is faster, if it is installed (the extra `http` includes it)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(gateways: Sequence[Gateway], announce: Callable[[list[str]], None], with_parent: bool) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if with_parent:
        loop.add_reader(sys.stdin.fileno(), _end_with_parent)
    async with AsyncExitStack() as started:
        for gateway in gateways:
            await gateway.start()
            started.push_async_callback(gateway.stop)
        announce([address for gateway in gateways for address in gateway.addresses])
        await stopped.wait()
    return 0


def _end_with_parent() -> None:
    """End this process if the parent has ended. Open requests can't be answered without it, and the next broker needs
    the ports, so nothing is drained."""
    if not os.read(sys.stdin.fileno(), 4096):
        os._exit(0)
