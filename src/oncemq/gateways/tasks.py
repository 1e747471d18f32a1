"""How gateways end their asyncio tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def drain(tasks: Collection[asyncio.Future[Any]], drain_s: float) -> None:
    """Wait for tasks for at most `drain_s`, then cancel those that are left."""
    if tasks:
        await asyncio.wait(tasks, timeout=drain_s)
    await cancel(*tasks)
