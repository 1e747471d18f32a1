"""Background work: what a client does without a call.

Periodic tasks send batches that have lingered, receive replies that no caller waits for, and renew leases. A blocking
client runs them on a thread, which starts with the first task. An asyncio client runs them from a timer of its loop.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from oncemq.client.runtime.driver import now_ms
from oncemq.protocol import errors

if TYPE_CHECKING:
    import asyncio

    from oncemq.client.runtime.driver import Driver
    from oncemq.client.runtime.event_loop import EventLoopDriver
    from oncemq.client.runtime.threads import ThreadDriver

log = logging.getLogger("oncemq.client")

#: The thread checks all tasks at least this often.
_IDLE_WAIT_MS = 250.0
#: And at most this often.
_WAIT_MS_MIN = 1.0
_NEVER = float("inf")


class PeriodicTask(Protocol):
    """Work that becomes due again and again: renewing a lease, for instance.

    A task that has sent a command sets `due_ms` a few milliseconds ahead until the reply has arrived: it may be the
    only one that looks for it."""

    @property
    def due_ms(self) -> float:
        """When the task is due, on the driver's clock; infinite while it is not. It is read without the lock."""

    def run(self) -> None:
        """Do what is due, and set `due_ms` again. Runs under the lock: it may send commands, and must not wait."""


class Background(ABC):
    """The periodic tasks of one client."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        #: Replaced, never changed: the thread reads it without the lock.
        self._tasks: tuple[PeriodicTask, ...] = ()
        #: After a failure, no task runs before this time: a task that has failed may still be due.
        self._retry_ms = 0.0

    def add(self, task: PeriodicTask) -> None:
        """Run a task whenever it is due. Call this again when its `due_ms` became earlier."""
        if task not in self._tasks:
            self._tasks = (*self._tasks, task)
        self.wake(task.due_ms)

    def remove(self, task: PeriodicTask) -> None:
        """Do not run a task any more."""
        self._tasks = tuple(each for each in self._tasks if each is not task)

    @abstractmethod
    def wake(self, due_ms: float) -> None:
        """A task is due at this time, which may be earlier than it was."""

    @abstractmethod
    def stop(self) -> None:
        """Run no task any more: the driver was stopped, or is about to be."""

    def _next_due_ms(self) -> float:
        return max(min((task.due_ms for task in self._tasks), default=_NEVER), self._retry_ms)

    def _run_due(self) -> None:
        """Run the tasks that are due. The lock is held."""
        try:
            self._driver.pump()
            at_ms = now_ms()
            due = [task for task in self._tasks if task.due_ms <= at_ms]
            for task in due:
                self._run_task(task)
            if due:
                self._driver.pump()
        except errors.OnceMQError as error:
            # An embedded broker failed. The next caller gets the same error.
            log.warning("%s", error)

    def _run_task(self, task: PeriodicTask) -> None:
        try:
            task.run()
        except errors.OnceMQError:
            raise
        except Exception:
            # The other tasks must run: without them, messages would stay in their buffers and leases would expire.
            log.exception("a background task failed, and is run again later")
            self._retry_ms = now_ms() + _IDLE_WAIT_MS


class BackgroundThread(Background):
    """Runs the tasks of a client that threads use."""

    _driver: ThreadDriver

    def __init__(self, driver: ThreadDriver) -> None:
        super().__init__(driver)
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        #: When the thread will check the tasks next.
        self._wakes_ms = _NEVER

    def wake(self, due_ms: float) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="oncemq-background", daemon=True)
            self._thread.start()
        elif due_ms < self._wakes_ms:
            self._woken.set()

    def stop(self) -> None:
        self._woken.set()

    def _run(self) -> None:
        while self._driver.stopped is None:
            try:
                self._run_once()
            except Exception:
                # Whatever it was: without this thread, messages would stay in their buffers.
                log.exception("a background task failed; the thread continues")
                self._woken.clear()
                self._woken.wait(_IDLE_WAIT_MS / 1000)

    def _run_once(self) -> None:
        """Wait for the next task without the lock, and take the lock only if one is due: a busy caller that fills and
        sends its batches itself is not disturbed."""
        # Set before the tasks are checked: a task that becomes due meanwhile is either seen, or sets the event.
        self._wakes_ms = _NEVER
        at_ms = now_ms()
        self._wakes_ms = wakes_ms = min(max(self._next_due_ms(), at_ms + _WAIT_MS_MIN), at_ms + _IDLE_WAIT_MS)
        self._woken.wait((wakes_ms - at_ms) / 1000)
        self._woken.clear()
        if self._next_due_ms() <= now_ms():
            with self._driver.lock:
                if self._driver.stopped is None:
                    self._run_due()


class BackgroundTimer(Background):
    """Runs the tasks of a client on an event loop."""

    _driver: EventLoopDriver

    def __init__(self, driver: EventLoopDriver) -> None:
        super().__init__(driver)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = _NEVER

    def wake(self, due_ms: float) -> None:
        if due_ms == _NEVER or (self._timer is not None and self._timer_ms <= due_ms):
            return
        self.stop()
        self._timer_ms = due_ms
        self._timer = self._driver.loop.call_later(max(0.0, due_ms - now_ms()) / 1000, self._run)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer = None
        if self._driver.stopped is not None:
            return
        try:
            self._run_due()
        except Exception:
            # Whatever it was: without this timer, messages would stay in their buffers.
            log.exception("a background task failed; the timer continues")
            self._retry_ms = now_ms() + _IDLE_WAIT_MS
        self.wake(self._next_due_ms())
