"""Work beside the loop: zero-filling, syncing snapshots, removing files.

A task is an iterator of steps. In production a thread runs it; in the simulator each step is taken by hand,
so that a crash can fall between any two. What a task has done is handed over when its `done` is seen.
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
        """One step; an Exception ends the task and is kept."""
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
        """Until the task is done."""

    def close(self) -> None:
        """Let everything that was started come to its end."""


class InlineWorker:
    """Runs each task to its end at once."""

    def start(self, steps: Iterator[None], name: str) -> Task:
        task = Task(steps, name)
        task.run()
        return task

    def wait(self, task: Task) -> None:
        task.run()

    def close(self) -> None:
        pass


class StepWorker:
    """For the simulator: nothing happens before `advance`. A crash drops it."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()

    def start(self, steps: Iterator[None], name: str) -> Task:
        task = Task(steps, name)
        self.tasks.append(task)
        return task

    def advance(self) -> bool:
        """One step of one task; the tasks take turns. False: there was nothing to do."""
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
    """One daemon thread, which is started with the first task."""

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
