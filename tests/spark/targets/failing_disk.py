"""A disk that stops at a given step, and one that forgets, when the power fails, what was not synced.

Real files in a real folder, so that Arrow can write to it; nothing is synced for real. When the power fails, every
name that was not synced is gone, every rename and removal that was not synced is undone, and every file whose content
was not synced is empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oncemq.spark.targets.files.disk import Disk


class Stopped(BaseException):
    """The process is gone, or the step failed."""


class FailingDisk(Disk):
    def __init__(self, root: Path) -> None:
        self._root = root
        self.steps = 0
        self.has_stopped = False
        #: That step is not done, or half done. 0 = never.
        self._stop_at = 0
        self._names: set[str] = set()
        self._contents: set[int] = set()
        #: What can be undone: source ("" = removed), target, and what the target was.
        self._unsynced: list[tuple[str, str, bytes | None]] = []

    def __reduce__(self) -> str | tuple[object, ...]:
        """One disk for all, workers too."""
        _disks[id(self)] = self
        return _find, (id(self),)

    @contextmanager
    def stopping_in(self, steps: int) -> Iterator[None]:
        """Goes on behind the block when the step came, and when it did not."""
        self._stop_at = self.steps + steps
        try:
            yield
        except Stopped:
            self.has_stopped = True
        self._stop_at = 0

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self._stop_at:
            raise Stopped

    def make_folder(self, path: str) -> None:
        self._step()
        super().make_folder(path)

    def write_file(self, path: str, data: bytes) -> None:
        try:
            self._step()
        except Stopped:
            Path(path).write_bytes(data[: len(data) // 2])
            raise
        Path(path).write_bytes(data)
        self._contents.add(os.stat(path).st_ino)

    def rename(self, source: str, target: str) -> None:
        self._step()
        self._unsynced.append((source, target, self.read_file(target)))
        super().rename(source, target)

    def remove_file(self, path: str) -> None:
        self._step()
        before = self.read_file(path)
        if before is not None:
            self._unsynced.append(("", path, before))
        super().remove_file(path)

    def sync_file(self, path: str) -> None:
        self._step()
        self._contents.add(os.stat(path).st_ino)

    def sync_folder(self, path: str) -> None:
        self._step()
        touched = [each for each in self._unsynced if path in map(os.path.dirname, each[:2])]
        self._unsynced = [each for each in self._unsynced if each not in touched]
        self._names.update(os.path.join(path, name) for name in os.listdir(path))
        self._names.update(target for _, target, _ in touched if os.path.exists(target))

    def cut_power(self) -> None:
        while self._unsynced:
            self._undo(*self._unsynced.pop())
        for folder, folders, files in os.walk(self._root, topdown=False):
            for name in files:
                self._forget_file(os.path.join(folder, name))
            for name in folders:
                if os.path.join(folder, name) not in self._names:
                    self.remove_folder(os.path.join(folder, name))

    def _undo(self, source: str, target: str, before: bytes | None) -> None:
        if source:
            os.replace(target, source)
        if before is not None:
            Path(target).write_bytes(before)
            self._contents.add(os.stat(target).st_ino)
            self._names.add(target)

    def _forget_file(self, path: str) -> None:
        if path not in self._names:
            os.unlink(path)
        elif os.stat(path).st_ino not in self._contents:
            os.truncate(path, 0)


_disks: dict[int, FailingDisk] = {}


def _find(key: int) -> FailingDisk:
    return _disks[key]
