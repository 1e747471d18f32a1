"""A shared subscription as tasks of an event loop use it; what it does is in shared_consumer.py."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import islice
from types import TracebackType

from oncemq.client.runtime.event_loop import EventLoopDriver
from oncemq.client.runtime.flow import Asynchronous
from oncemq.client.worker.dead_letters import reason_of
from oncemq.client.worker.shared_consumer import Working
from oncemq.client.worker.task import REJECTED, AnyTask
from oncemq.protocol import errors


class Task(AnyTask, gc=False, eq=False):
    """A message to be worked on. Until it is settled, its lease is extended by itself.

    >>> task = await workers.take(timeout_s=10)
    >>> await pack(task.value)
    >>> await task.ack()
    """

    async def ack(self, *, wait: bool = False) -> None:
        """It is done. Sent together with others within a moment; with `wait` it is on the broker's disk when this
        returns. An ack that comes too late raises LeaseLost: here if that is known, or with `wait`; else the next
        call of the subscription raises it.

        >>> await task.ack()
        """
        if wait or not self._ack_at_hand():
            await self.lease.working._run(self.lease.working._ack(self, wait))

    async def nack(self, delay_s: float = 0.0, *, reason: str = "") -> None:
        """It is not done: give it back, to be delivered again at once, or after `delay_s`. After its last try it
        goes to the dead-letter topic, with this reason.

        >>> await task.nack(delay_s=5, reason="the oven is cold")
        """
        await self.lease.working._run(self.lease.working._nack(self, delay_s, reason))

    async def reject(self, reason: str = REJECTED) -> None:
        """It never can be done: straight to the dead-letter topic, with a reason for people.

        >>> await task.reject("no such customer")
        """
        await self.lease.working._run(self.lease.working._reject(self, reason))

    async def extend(self) -> None:
        """Begin its lease anew. Raises LeaseLost. Needed only with `auto_extend=False`.

        >>> await task.extend()
        """
        await self.lease.working._run(self.lease.working._extend_now(self.lease))


class SharedSubscription(Asynchronous, Working[Task]):
    """One of the consumers that share a subscription. For one asyncio task at a time, and its tasks for any.

    >>> async with await client.subscribe_shared("orders", "packers") as workers:
    ...     async for task in workers.tasks(timeout_s=10):
    ...         await pack(task.value)
    ...         await task.ack()
    """

    _driver: EventLoopDriver
    _task_type = Task
    _user = "task"

    @staticmethod
    def _who() -> int:
        return id(asyncio.current_task())

    async def take(self, timeout_s: float | None = 0.0) -> Task | None:
        """The next task; None if there is none within `timeout_s` (None: wait for ever).

        >>> task = await workers.take(timeout_s=5)
        """
        guard = self._one_user
        guard.enter()
        try:
            guard.is_inside = True
            task = self._take_at_hand()
            return task if task is not None else await self._driver.run(self._take_one(timeout_s))
        finally:
            guard.is_inside = False
            guard.leave()

    async def tasks(self, timeout_s: float | None = None) -> AsyncIterator[Task]:
        """Iterate; ends when nothing came for `timeout_s` (None: never).

        >>> async for task in workers.tasks(timeout_s=10):
        ...     await pack(task.value)
        ...     await task.ack()
        """
        stride = await self._driver.run(self._next_stride(0, False, timeout_s))
        while stride:
            task = None
            for task in islice(self._current, stride):
                if not task.lease.is_over:
                    yield task
            stride = await self._driver.run(self._next_stride(stride, task is None, timeout_s))

    def __aiter__(self) -> AsyncIterator[Task]:
        return self.tasks()

    @contextlib.asynccontextmanager
    async def handling(self, task: Task, *, delay_s: float = 0.0) -> AsyncIterator[Task]:
        """Ack the task when the block ends, give it back when it fails; unless the block has settled it. A dead
        letter that comes of it has the exception as its reason.

        >>> async with workers.handling(task):
        ...     await pack(task.value)
        """
        try:
            yield task
        except BaseException as error:
            if not task.outcome:
                # If that can't be done either, it comes again all the same.
                with contextlib.suppress(errors.OnceMQError):
                    await task.nack(delay_s, reason=reason_of(error))
            raise
        if not task.outcome:
            await task.ack()

    async def __aenter__(self) -> SharedSubscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._run(self._close(clean=kind is None))
