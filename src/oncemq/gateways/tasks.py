"""How gateways start and end their asyncio tasks: no task fails silently.

A task of its own (`start`) reports its failure: it is logged, counted, and told to the task's owner, which ends what
depends on the task. The failure of a task that somebody awaits (`start_awaited`) is the failure of that caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, TypeVar

log = logging.getLogger("oncemq.gateways")

#: Pause before work that has failed is started again.
_PAUSE_S = 0.5

T = TypeVar("T")

#: Unexpected failures in this process, by the name of what failed. GET /metrics shows them.
failures: Counter[str] = Counter()


def report_failure(name: str, error: BaseException) -> None:
    """Count and log an exception that nobody expects. `name` says what failed; it contains no input of peers."""
    failures[name] += 1
    log.error("%s failed: this is a bug", name, exc_info=error)


def start(
    work: Coroutine[Any, Any, T], name: str, on_failure: Callable[[BaseException], None] | None = None
) -> asyncio.Task[T]:
    """Start a task that nobody awaits. If it fails, the failure is reported, and then `on_failure` is called."""

    def finish(task: asyncio.Task[T]) -> None:
        # A task that is cancelled before its first step leaves its coroutine open.
        work.close()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            report_failure(name, error)
            if on_failure is not None:
                on_failure(error)

    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(finish)
    return task


def start_awaited(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task whose result its starter awaits. If the starter is cancelled, nobody needs to know a failure."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_retrieve_exception)
    return task


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


async def keep_running(work: Callable[[], Awaitable[None]], name: str) -> None:
    """Run work until it returns. If it fails, the failure is reported, and the work is started again after a pause."""
    while True:
        try:
            await work()
        except Exception as error:
            report_failure(name, error)
            await asyncio.sleep(_PAUSE_S)
        else:
            return


def handle_loop_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report what the event loop found: an exception in a callback, for instance."""
    error = context.get("exception")
    if error is None:
        loop.default_exception_handler(context)
    else:
        report_failure("a callback of the event loop", error)


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
