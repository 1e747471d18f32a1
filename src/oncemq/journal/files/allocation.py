"""Zero-filled files, created in the background. This is the only place where a full disk becomes visible.

A full disk is not a failure. The allocation is tried again after a number of calls, which doubles each time. Calls are
counted instead of time, so that a simulated run can be repeated exactly.
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


def zero_fill(disk: Disk, path: str, size: int, sync_bytes: int = 0) -> Iterator[None]:
    """Create a file filled with zeros. It has another name until it is complete. Later writes only overwrite it, so
    that it never grows again.

    It is synced after every `sync_bytes`, 0 = only at the end: a sync of a group may have to wait for what was written
    before it."""
    temporary = path + ".making"
    if disk.exists(temporary):
        disk.remove(temporary)
    file = disk.open(temporary, create=True)
    try:
        for offset in range(0, size, FILL_CHUNK_BYTES):
            if sync_bytes and offset and offset % sync_bytes == 0:
                file.sync("speed: zero-filled file")
            file.write(offset, [memoryview(_ZEROS)[: size - offset]])
            yield
        file.sync("speed: zero-filled file")
    except OSError:
        file.close()
        disk.remove(temporary)
        raise
    file.close()
    disk.rename(temporary, path)


class Allocation:
    """Creates files, at most one at a time."""

    def __init__(self, disk: Disk, worker: Worker) -> None:
        self._disk = disk
        self._worker = worker
        self._task: Task | None = None
        self._path = ""
        self._pause_calls = 0
        self._pause_calls_next = 1

    @property
    def is_paused(self) -> bool:
        """Whether the disk was full a few calls ago."""
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
        filling = zero_fill(self._disk, path, size, sync_bytes=FILL_CHUNK_BYTES)
        self._task = self._worker.start(filling, f"create {path}", gently=True)

    def take(self, wait: bool = False) -> str | None:
        """Return the path of a file that was finished since the last call. Raise JournalFailed."""
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
            raise errors.JournalFailed(f"{self._path} could not be created: {task.error}") from task.error
        self._pause_calls_next = 1
        return self._path

    def _pause(self) -> None:
        self._pause_calls = self._pause_calls_next
        self._pause_calls_next = min(2 * self._pause_calls_next, PAUSE_CALLS_MAX)
