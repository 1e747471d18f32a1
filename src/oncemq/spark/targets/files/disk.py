"""What the file sinks do to a disk, so that a test can stop them between any two steps, or cut the power.

A name is on stable storage when its folder was synced, content when its file was. The Parquet files themselves are
written by Arrow, outside of this seam, and synced through it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator

from oncemq.disk.os_disk import durable_sync
from oncemq.protocol import errors

LOCK_WAIT_S = 60.0
_LOCK_POLL_S = 0.05


class Disk:
    def make_folder(self, path: str) -> None:
        """The folder and all above it. Their names are not synced."""
        os.makedirs(path, exist_ok=True)

    def write_file(self, path: str, data: bytes) -> None:
        """A whole file, its content synced, its name not."""
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            durable_sync(file.fileno())

    def read_file(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def rename(self, source: str, target: str) -> None:
        """Replaces what was there. Neither name is synced."""
        os.replace(source, target)

    def sync_file(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            durable_sync(descriptor)
        finally:
            os.close(descriptor)

    def sync_folder(self, path: str) -> None:
        """All names in the folder."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove_file(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_folder(self, path: str) -> None:
        """With all that is in it, as far as it goes: what stays is hidden, and nobody's."""
        shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """Only one at a time has it; the death of a process frees it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, path)
            yield
        finally:
            os.close(descriptor)


def _lock(descriptor: int, path: str) -> None:
    until_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until_s:
                text = f"another driver has held {path} for {LOCK_WAIT_S:.0f} s: do two run on one checkpoint?"
                raise errors.OnceMQError(text) from None
            time.sleep(_LOCK_POLL_S)


def sync_names(disk: Disk, folders: Iterable[str], top: str) -> None:
    """The names in these folders and in all folders above them, up to and with `top`."""
    waiting = set()
    for folder in folders:
        while folder not in waiting:
            waiting.add(folder)
            folder = folder if folder == top else os.path.dirname(folder)
    for folder in sorted(waiting, reverse=True):
        disk.sync_folder(folder)


def write_atomically(disk: Disk, path: str, data: bytes) -> None:
    """All of it or nothing, also when the power fails; on stable storage when this returns."""
    fresh = f"{path}.fresh"
    disk.write_file(fresh, data)
    disk.rename(fresh, path)
    disk.sync_folder(os.path.dirname(path))
