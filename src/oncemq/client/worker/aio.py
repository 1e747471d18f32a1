"""A shared subscription as tasks of an event loop use it. What it does is in shared_consumer.py."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from itertools import islice
from typing import TYPE_CHECKING

from oncemq.client.context import ClientContext
from oncemq.client.worker.dead_letters import reason_of
from oncemq.client.worker.options import WorkerOptions
from oncemq.client.worker.shared_consumer import BaseSharedSubscription, SharedConsumer
from oncemq.client.worker.task import REJECTED, BaseTask
from oncemq.protocol import errors

if TYPE_CHECKING:
    from oncemq.client.runtime.event_loop import EventLoopDriver


class Task(BaseTask, gc=False, eq=False):
    """As `oncemq.Task`, with methods that are awaited.

    >>> task = await workers.take(timeout_s=10)
    >>> await pack(task.value)
    >>> await task.ack()
    """

    async def ack(self, *, wait: bool = False) -> None:
        """The task is done. The ack is sent together with others within a moment; with `wait` it is on the broker's
        disk when this returns. An ack that comes too late raises LeaseLost: here if that is known, or with `wait`; else
        the next call of the subscription raises it.

        >>> await task.ack()
        """
        if wait or not self._ack_buffered():
            consumer = self.lease.consumer
            await consumer.driver.run(consumer.ack(self, wait))

    async def nack(self, delay_s: float = 0.0, *, reason: str = "") -> None:
        """The task is not done: return it, to be delivered again immediately, or after `delay_s`. After its last try it
        goes to the dead-letter topic, with this reason.

        >>> await task.nack(delay_s=5, reason="the oven is cold")
        """
        consumer = self.lease.consumer
        await consumer.driver.run(consumer.nack(self, delay_s, reason))

    async def reject(self, reason: str = REJECTED) -> None:
        """The task can never be done: send it to the dead-letter topic, with a reason for people.

        >>> await task.reject("no such customer")
        """
        consumer = self.lease.consumer
        await consumer.driver.run(consumer.reject(self, reason))

    async def extend(self) -> None:
        """Renew its lease now. Raises LeaseLost. Needed only with `auto_extend=False`.

        >>> await task.extend()
        """
        consumer = self.lease.consumer
        await consumer.driver.run(consumer.extend(self.lease))


class SharedSubscription(BaseSharedSubscription[Task]):
    """As `oncemq.SharedSubscription`, with methods that are awaited. For one asyncio task at a time, and its tasks for
    any.

    >>> async with await client.subscribe_shared("orders", "packers") as workers:
    ...     async for task in workers.tasks(timeout_s=10):
    ...         await pack(task.value)
    ...         await task.ack()
    """

    def __init__(self, context: ClientContext, topic: str, subscriber: str, options: WorkerOptions) -> None:
        super().__init__(SharedConsumer(context, topic, subscriber, options, Task))
        self._driver: EventLoopDriver = context.driver  # type: ignore[assignment]

    async def take(self, timeout_s: float | None = 0.0) -> Task | None:
        """Return the next task; None if there is none within `timeout_s` (None: no time limit).

        >>> task = await workers.take(timeout_s=5)
        """
        consumer = self.consumer
        guard = consumer.guard
        guard.enter()
        try:
            guard.is_inside = True
            task = consumer.take_buffered()
            return task if task is not None else await self._driver.run(consumer.take(timeout_s))
        finally:
            guard.is_inside = False
            guard.leave()

    async def take_many(self, tasks_max: int = 100, timeout_s: float | None = 0.0) -> list[Task]:
        """Return at most `tasks_max` tasks, as soon as there are any; an empty list if none come within `timeout_s`.

        >>> for task in await workers.take_many(100, timeout_s=5):
        ...     await pack(task.value)
        ...     await task.ack()
        """
        return await self._driver.run(self.consumer.take_many(tasks_max, timeout_s))

    async def tasks(self, timeout_s: float | None = None) -> AsyncIterator[Task]:
        """Iterate over tasks. Ends when none came for `timeout_s` (None: never).

        >>> async for task in workers.tasks(timeout_s=10):
        ...     await pack(task.value)
        ...     await task.ack()
        """
        consumer, run = self.consumer, self._driver.run
        stride = await run(consumer.next_stride(0, False, timeout_s))
        while stride:
            task = None
            for task in islice(consumer.takes.current, stride):
                if not task.lease.is_over:
                    yield task
            stride = await run(consumer.next_stride(stride, task is None, timeout_s))

    def __aiter__(self) -> AsyncIterator[Task]:
        return self.tasks()

    @contextlib.asynccontextmanager
    async def handling(self, task: Task, *, delay_s: float = 0.0) -> AsyncIterator[Task]:
        """Ack the task when the block ends, and return it when the block fails; unless the block has settled it. A
        dead letter that results has the exception as its reason.

        >>> async with workers.handling(task):
        ...     await pack(task.value)
        """
        try:
            yield task
        except BaseException as error:
            if not task.outcome:
                # If that fails too, the message is delivered again anyway.
                with contextlib.suppress(errors.OnceMQError):
                    await task.nack(delay_s, reason=reason_of(error))
            raise
        if not task.outcome:
            await task.ack()

    async def flush(self) -> None:
        """Wait until everything that was settled is on the broker's disk. Raises LeaseLost for acks that came too late.

        >>> await workers.flush()
        """
        await self._driver.run(self.consumer.flush())

    async def close(self) -> None:
        """Send what was settled, return what was not, and stop. The durable subscription stays."""
        await self._driver.run(self.consumer.close(clean=True))

    async def __aenter__(self) -> SharedSubscription:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._driver.run(self.consumer.close(clean=kind is None))
