"""A gateway in a process of its own, until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from oncemq.gateways.contract import Gateway


def run(gateway: Gateway, announce: Callable[[list[str]], None]) -> int:
    """Returns the exit code. `announce` is told where it listens. Raises ListenFailed."""
    return asyncio.run(_run(gateway, announce))


async def _run(gateway: Gateway, announce: Callable[[list[str]], None]) -> int:
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, is_over.set)
    await gateway.start()
    announce(gateway.addresses)
    try:
        await is_over.wait()
    finally:
        await gateway.stop()
    return 0
