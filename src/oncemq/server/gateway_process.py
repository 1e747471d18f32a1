"""Gateways in a process of their own, until a signal ends it, or whoever started it is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from oncemq.gateways.contract import Gateway


def run(gateways: Sequence[Gateway], announce: Callable[[list[str]], None], *, with_parent: bool = False) -> int:
    """Returns the exit code. `announce` is told where they listen. `with_parent`: standard input is the other end of a
    pipe that its parent holds, and ends with it. Raises ListenFailed."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(gateways, announce, with_parent))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The quicker one, where it is installed (it comes with the extra `http`)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(gateways: Sequence[Gateway], announce: Callable[[list[str]], None], with_parent: bool) -> int:
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, is_over.set)
    if with_parent:
        loop.add_reader(sys.stdin.fileno(), _look_at_parent, loop, is_over)
    async with AsyncExitStack() as started:
        for gateway in gateways:
            await gateway.start()
            started.push_async_callback(gateway.stop)
        announce([address for gateway in gateways for address in gateway.addresses])
        await is_over.wait()
    return 0


def _look_at_parent(loop: asyncio.AbstractEventLoop, is_over: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        is_over.set()
