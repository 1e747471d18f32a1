"""Zero-filled files, made beside the loop: the only place where a full disk shows.

A disk that is full is no failure. It is tried again after some calls, and after more calls each time: by
calls and not by a clock, so that a simulated run repeats itself exactly.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from oncemq.disk.contract import Disk
from oncemq.journal.worker import Task, Worker
from oncemq.protocol import errors

FILL_CHUNK_BYTES = 1024 * 1024
PAUSE_CALLS_MAX = 64
_ZEROS = bytes(FILL_CHUNK_BYTES)


def is_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def zero_fill(disk: Disk, path: str, size: int) -> Iterator[None]:
    """Under another name until it is whole. Filled once, it is overwritten without growing ever after."""
    making = path + ".making"
    if disk.exists(making):
        disk.remove(making)
    file = disk.open(making, create=True)
    try:
        for offset in range(0, size, FILL_CHUNK_BYTES):
            file.write(offset, [memoryview(_ZEROS)[: size - offset]])
            yield
        file.sync("speed: zero-filled file")
    except OSError:
        file.close()
        disk.remove(making)
        raise
    file.close()
    disk.rename(making, path)


class Allocation:
    """At most one file at a time."""

    def __init__(self, disk: Disk, worker: Worker) -> None:
        self._disk = disk
        self._worker = worker
        self._task: Task | None = None
        self._path = ""
        self._pause_calls = 0
        self._pause_calls_next = 1

    @property
    def is_paused(self) -> bool:
        """The disk was full a few calls ago."""
        return self._pause_calls > 0

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def tick(self) -> None:
        if self._pause_calls:
            self._pause_calls -= 1

    def start(self, path: str, size: int) -> None:
        if self._task is not None or self._pause_calls:
            return
        if self._disk.free_bytes() < size:
            self._pause()
            return
        self._path = path
        self._task = self._worker.start(zero_fill(self._disk, path, size), f"make {path}")

    def take(self, wait: bool = False) -> str | None:
        """The path of a file that has been finished since the last call. Raises JournalFailed."""
        task = self._task
        if task is None:
            return None
        if wait:
            self._worker.wait(task)
        if not task.done:
            return None
        self._task = None
        if is_full(task.error):
            self._pause()
            return None
        if task.error is not None:
            raise errors.JournalFailed(f"{self._path} could not be made: {task.error}") from task.error
        self._pause_calls_next = 1
        return self._path

    def _pause(self) -> None:
        self._pause_calls = self._pause_calls_next
        self._pause_calls_next = min(2 * self._pause_calls_next, PAUSE_CALLS_MAX)
