"""A shared subscription as threads use it; what it does is in shared_consumer.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from types import TracebackType

from oncemq.client.runtime.flow import Blocking
from oncemq.client.runtime.threads import ThreadDriver
from oncemq.client.worker.dead_letters import reason_of
from oncemq.client.worker.shared_consumer import Working
from oncemq.client.worker.task import Task
from oncemq.protocol import errors


class SharedSubscription(Blocking, Working[Task]):
    """One of the consumers that share a subscription. For one thread at a time, and its tasks for any.

    >>> with client.subscribe_shared("orders", "packers") as workers:
    ...     for task in workers.tasks(timeout_s=10):
    ...         pack(task.value)
    ...         task.ack()
    """

    _driver: ThreadDriver
    _task_type = Task

    def take(self, timeout_s: float | None = 0.0) -> Task | None:
        """The next task; None if there is none within `timeout_s` (None: wait for ever).

        >>> task = workers.take(timeout_s=5)
        """
        guard = self._one_user
        guard.enter()
        try:
            guard.is_inside = True
            task = self._take_at_hand()
            return task if task is not None else self._driver.run(self._take_one(timeout_s))
        finally:
            guard.is_inside = False
            guard.leave()

    def tasks(self, timeout_s: float | None = None) -> Iterator[Task]:
        """Iterate; ends when nothing came for `timeout_s` (None: never).

        >>> for task in workers.tasks(timeout_s=10):
        ...     pack(task.value)
        ...     task.ack()
        """
        stride = self._driver.run(self._next_stride(0, False, timeout_s))
        while stride:
            task = None
            for task in islice(self._current, stride):
                if not task.lease.is_over:
                    yield task
            stride = self._driver.run(self._next_stride(stride, task is None, timeout_s))

    def __iter__(self) -> Iterator[Task]:
        return self.tasks()

    @contextlib.contextmanager
    def handling(self, task: Task, *, delay_s: float = 0.0) -> Iterator[Task]:
        """Ack the task when the block ends, give it back when it fails; unless the block has settled it. A dead
        letter that comes of it has the exception as its reason.

        >>> with workers.handling(task):
        ...     pack(task.value)
        """
        try:
            yield task
        except BaseException as error:
            if not task.outcome:
                # If that can't be done either, it comes again all the same.
                with contextlib.suppress(errors.OnceMQError):
                    task.nack(delay_s, reason=reason_of(error))
            raise
        if not task.outcome:
            task.ack()

    def __enter__(self) -> SharedSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._close(clean=kind is None))
