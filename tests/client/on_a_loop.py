"""Tests that are coroutines: each on an event loop of its own, which must be as empty at the end as it was before."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

LIMIT_S = 60


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    async def watched(*args: Any, **fixtures: Any) -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        await asyncio.wait_for(test(*args, **fixtures), LIMIT_S)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks that nobody ended: {left}"
        assert not complaints

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        asyncio.run(watched(*args, **fixtures))

    return run


async def become(is_true: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until it is."""
    deadline = asyncio.get_running_loop().time() + LIMIT_S / 2
    while True:
        found = is_true()
        if found if isinstance(found, bool) else await found:
            return
        assert asyncio.get_running_loop().time() < deadline, "it never was"
        await asyncio.sleep(0.002)
