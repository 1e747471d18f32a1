"""Tests that are coroutines. Each runs on its own event loop, which must have no tasks left at the end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

LIMIT_S = 60


def on_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    async def watched(*args: Any, **fixtures: Any) -> None:
        unhandled: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        await asyncio.wait_for(test(*args, **fixtures), LIMIT_S)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks that did not end: {left}"
        assert not unhandled

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        asyncio.run(watched(*args, **fixtures))

    return run


async def wait_until(is_true: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until a condition is true. Fails after half of the time limit."""
    deadline = asyncio.get_running_loop().time() + LIMIT_S / 2
    while True:
        found = is_true()
        if found if isinstance(found, bool) else await found:
            return
        assert asyncio.get_running_loop().time() < deadline, "the condition did not become true"
        await asyncio.sleep(0.002)
