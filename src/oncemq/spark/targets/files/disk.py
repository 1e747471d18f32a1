"""The disk operations of the file sinks, in one class, so that a test can simulate a crash or power failure between any
two of them.

A file name is durable when its folder was synced; the content is durable when the file was synced. Arrow writes the
Parquet files themselves, without this class; they are synced with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator

from oncemq.disk.os_disk import durable_sync
from oncemq.protocol import errors

LOCK_WAIT_S = 60.0
_LOCK_POLL_S = 0.05


class Disk:
    def make_folder(self, path: str) -> None:
        """Create the folder and its parents. Their names are not synced."""
        os.makedirs(path, exist_ok=True)

    def write_file(self, path: str, data: bytes) -> None:
        """Write a whole file and sync its content, but not its name."""
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

    def update_file(self, path: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace a small file by what `change` makes of its content (None = there is no file), while no other process
        does. Its name is not synced if another process wrote it, nor are those of its folders."""
        self.make_folder(os.path.dirname(path))
        with self.locked(f"{path}.lock"):
            before = self.read_file(path)
            after = change(before)
            if after != before:
                write_atomically(self, path, after)

    def rename(self, source: str, target: str) -> None:
        """Rename a file; an existing target is replaced. Neither name is synced."""
        os.replace(source, target)

    def sync_file(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            durable_sync(descriptor)
        finally:
            os.close(descriptor)

    def sync_folder(self, path: str) -> None:
        """Sync all names in the folder."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove_file(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_folder(self, path: str) -> None:
        """Delete a folder with its content. Errors are ignored: readers do not see what is left."""
        shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """Hold an exclusive lock. It is released if the process dies. Raises OnceMQError after LOCK_WAIT_S."""
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
                text = f"another driver has locked {path} for {LOCK_WAIT_S:.0f} s: do two drivers use one checkpoint?"
                raise errors.OnceMQError(text) from None
            time.sleep(_LOCK_POLL_S)


def sync_names(disk: Disk, folders: Iterable[str], top: str) -> None:
    """Sync the names in these folders and in their parents, up to and including `top`."""
    pending = set()
    for folder in folders:
        while folder not in pending:
            pending.add(folder)
            folder = folder if folder == top else os.path.dirname(folder)
    for folder in sorted(pending, reverse=True):
        disk.sync_folder(folder)


def write_atomically(disk: Disk, path: str, data: bytes) -> None:
    """Write a whole file or nothing, even if the power fails. The file is durable when this returns."""
    fresh = f"{path}.fresh"
    disk.write_file(fresh, data)
    disk.rename(fresh, path)
    disk.sync_folder(os.path.dirname(path))
