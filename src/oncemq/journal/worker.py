"""Background work of a journal: zero-filling files, syncing snapshots, deleting files.

A task is an iterator of steps. In production a thread runs it. The simulator runs each step explicitly, so that a crash
can happen between any two. The loop uses the result of a task once it sees `done`.

A task that writes or deletes much is *gentle*: the thread pauses after each step, so that the syncs of groups have most
of the disk's time. It does not pause while the loop waits for a task, or is about to.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Protocol

#: A pause is this many times as long as the step before it.
_PAUSE_PER_STEP = 3
#: A step that takes long, because the disk is busy or the process was suspended, must not lead to a pause of minutes.
_PAUSE_S_MAX = 1.0


class Task:
    """`error` is set before `done`."""

    __slots__ = ("done", "ended", "error", "is_gentle", "name", "steps")

    def __init__(self, steps: Iterator[None], name: str, is_gentle: bool = False) -> None:
        self.steps = steps
        self.name = name
        self.is_gentle = is_gentle
        self.done = False
        self.error: Exception | None = None
        self.ended = threading.Event()

    def step(self) -> None:
        """Run one step. An Exception ends the task and is kept in `error`."""
        try:
            next(self.steps)
        except StopIteration:
            self._end()
        except Exception as error:
            self.error = error
            self._end()

    def _end(self) -> None:
        self.done = True
        self.ended.set()

    def run(self) -> None:
        while not self.done:
            self.step()


class Worker(Protocol):
    def start(self, steps: Iterator[None], name: str, *, gently: bool = False) -> Task: ...

    def hurry(self) -> None:
        """Run the tasks that were started without pauses: the loop will need a result soon."""

    def wait(self, task: Task) -> None:
        """Return when the task is done."""

    def close(self) -> None:
        """Finish all tasks that were started."""


class InlineWorker:
    """Runs each task completely when it is started."""

    def start(self, steps: Iterator[None], name: str, *, gently: bool = False) -> Task:
        task = Task(steps, name, gently)
        task.run()
        return task

    def hurry(self) -> None:
        pass

    def wait(self, task: Task) -> None:
        task.run()

    def close(self) -> None:
        pass


class StepWorker:
    """For the simulator: runs steps only when `advance` is called. A crash drops the worker with its tasks."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()

    def start(self, steps: Iterator[None], name: str, *, gently: bool = False) -> Task:
        task = Task(steps, name, gently)
        self.tasks.append(task)
        return task

    def hurry(self) -> None:
        pass

    def advance(self) -> bool:
        """Run one step of one task; the tasks take turns. Return False if there is no task."""
        if not self.tasks:
            return False
        task = self.tasks.popleft()
        task.step()
        if not task.done:
            self.tasks.append(task)
        return True

    def wait(self, task: Task) -> None:
        task.run()
        if task in self.tasks:
            self.tasks.remove(task)

    def close(self) -> None:
        while self.advance():
            pass


class ThreadWorker:
    """Runs tasks in one daemon thread, which is started with the first task."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Set until all tasks are done, from when the loop needs one of them.
        self._in_hurry = threading.Event()

    def start(self, steps: Iterator[None], name: str, *, gently: bool = False) -> Task:
        task = Task(steps, name, gently)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="oncemq-journal", daemon=True)
            self._thread.start()
        self._queue.put(task)
        return task

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            if task.is_gentle:
                self._run_gently(task)
            else:
                task.run()
            if self._queue.empty():
                self._in_hurry.clear()

    def _run_gently(self, task: Task) -> None:
        while True:
            started_s = time.monotonic()
            task.step()
            if task.done:
                return
            self._in_hurry.wait(min(_PAUSE_PER_STEP * (time.monotonic() - started_s), _PAUSE_S_MAX))

    def hurry(self) -> None:
        self._in_hurry.set()

    def wait(self, task: Task) -> None:
        while not task.ended.is_set():
            self.hurry()
            # The thread may just have ended another task, and with it the hurry.
            task.ended.wait(_PAUSE_S_MAX)

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self.hurry()
            self._thread.join()
            self._thread = None
