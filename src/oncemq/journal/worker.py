"""Background work of a journal: zero-filling files, syncing snapshots, deleting files.

A task is an iterator of steps. In production a thread runs it. The simulator runs each step explicitly, so that a crash
can happen between any two. The loop uses the result of a task once it sees `done`.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from typing import Protocol


class Task:
    """`error` is set before `done`."""

    __slots__ = ("done", "ended", "error", "name", "steps")

    def __init__(self, steps: Iterator[None], name: str) -> None:
        self.steps = steps
        self.name = name
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
    def start(self, steps: Iterator[None], name: str) -> Task: ...

    def wait(self, task: Task) -> None:
        """Return when the task is done."""

    def close(self) -> None:
        """Finish all tasks that were started."""


class InlineWorker:
    """Runs each task completely when it is started."""

    def start(self, steps: Iterator[None], name: str) -> Task:
        task = Task(steps, name)
        task.run()
        return task

    def wait(self, task: Task) -> None:
        task.run()

    def close(self) -> None:
        pass


class StepWorker:
    """For the simulator: runs steps only when `advance` is called. A crash drops the worker with its tasks."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()

    def start(self, steps: Iterator[None], name: str) -> Task:
        task = Task(steps, name)
        self.tasks.append(task)
        return task

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

    def start(self, steps: Iterator[None], name: str) -> Task:
        task = Task(steps, name)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="oncemq-journal", daemon=True)
            self._thread.start()
        self._queue.put(task)
        return task

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            task.run()

    def wait(self, task: Task) -> None:
        task.ended.wait()

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
