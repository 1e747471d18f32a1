"""A shared subscription as threads use it. What it does is in shared_consumer.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from oncemq.client.context import ClientContext
from oncemq.client.worker.dead_letters import reason_of
from oncemq.client.worker.options import WorkerOptions
from oncemq.client.worker.shared_consumer import BaseSharedSubscription, SharedConsumer
from oncemq.client.worker.task import Task
from oncemq.protocol import errors

if TYPE_CHECKING:
    from oncemq.client.runtime.threads import ThreadDriver


class SharedSubscription(BaseSharedSubscription[Task]):
    """One of the consumers of a shared subscription. For one thread at a time, and its tasks for any.

    >>> with client.subscribe_shared("orders", "packers") as workers:
    ...     for task in workers.tasks(timeout_s=10):
    ...         pack(task.value)
    ...         task.ack()
    """

    def __init__(self, context: ClientContext, topic: str, subscriber: str, options: WorkerOptions) -> None:
        super().__init__(SharedConsumer(context, topic, subscriber, options, Task))
        self._driver: ThreadDriver = context.driver  # type: ignore[assignment]

    def take(self, timeout_s: float | None = 0.0) -> Task | None:
        """Return the next task; None if there is none within `timeout_s` (None: no time limit).

        >>> task = workers.take(timeout_s=5)
        """
        consumer = self.consumer
        guard = consumer.guard
        guard.enter()
        try:
            guard.is_inside = True
            task = consumer.take_buffered()
            return task if task is not None else self._driver.run(consumer.take(timeout_s))
        finally:
            guard.is_inside = False
            guard.leave()

    def take_many(self, tasks_max: int = 100, timeout_s: float | None = 0.0) -> list[Task]:
        """Return at most `tasks_max` tasks, as soon as there are any; an empty list if none come within `timeout_s`.

        >>> for task in workers.take_many(100, timeout_s=5):
        ...     pack(task.value)
        ...     task.ack()
        """
        return self._driver.run(self.consumer.take_many(tasks_max, timeout_s))

    def tasks(self, timeout_s: float | None = None) -> Iterator[Task]:
        """Iterate over tasks. Ends when none came for `timeout_s` (None: never).

        >>> for task in workers.tasks(timeout_s=10):
        ...     pack(task.value)
        ...     task.ack()
        """
        consumer, run = self.consumer, self._driver.run
        stride = run(consumer.next_stride(0, False, timeout_s))
        while stride:
            task = None
            for task in islice(consumer.takes.current, stride):
                if not task.lease.is_over:
                    yield task
            stride = run(consumer.next_stride(stride, task is None, timeout_s))

    def __iter__(self) -> Iterator[Task]:
        return self.tasks()

    @contextlib.contextmanager
    def handling(self, task: Task, *, delay_s: float = 0.0) -> Iterator[Task]:
        """Ack the task when the block ends, and return it when the block fails; unless the block has settled it. A
        dead letter that results has the exception as its reason.

        >>> with workers.handling(task):
        ...     pack(task.value)
        """
        try:
            yield task
        except BaseException as error:
            if not task.outcome:
                # If that fails too, the message is delivered again anyway.
                with contextlib.suppress(errors.OnceMQError):
                    task.nack(delay_s, reason=reason_of(error))
            raise
        if not task.outcome:
            task.ack()

    def flush(self) -> None:
        """Wait until everything that was settled is on the broker's disk. Raises LeaseLost for acks that came too late.

        >>> workers.flush()
        """
        self._driver.run(self.consumer.flush())

    def close(self) -> None:
        """Send what was settled, return what was not, and stop. The durable subscription stays."""
        self._driver.run(self.consumer.close(clean=True))

    def __enter__(self) -> SharedSubscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._driver.run(self.consumer.close(clean=kind is None))
