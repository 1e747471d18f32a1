"""The disk interface: the operations that the file journal needs.

In production it is the operating system (`OsDisk`). In the simulator and in crash tests it is a disk that drops, tears
or flips unsynced data. Every sync has a label that says what it makes durable: a test omits each of them in turn and
must detect the damage.

Paths are relative to the disk's root, with "/" between folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class DiskFile(Protocol):
    def write(self, offset: int, parts: Sequence[bytes | memoryview]) -> None:
        """Write all parts one after the other, or raise OSError. They are not durable before `sync`."""

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end of the file."""

    def sync(self, label: str) -> None:
        """Make the content and size of the file durable."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    def close(self) -> None: ...


class Disk(Protocol):
    def describe(self) -> str: ...

    def open(self, path: str, create: bool = False) -> DiskFile:
        """Raise FileNotFoundError, or FileExistsError with `create`."""

    def exists(self, path: str) -> bool: ...

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted."""

    def make_folder(self, folder: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file. The new name is not durable before `sync_folder`."""

    def remove(self, path: str) -> None: ...

    def sync_folder(self, folder: str, label: str) -> None:
        """Make the names in a folder durable."""

    def free_bytes(self) -> int: ...

    def lock(self, path: str) -> Lock:
        """Take a lock that is held until it is closed or this process ends, and that children do not inherit. Raise
        JournalLocked."""


def write_file(disk: Disk, path: str, content: bytes, label: str) -> None:
    """Create or replace a file and sync it. Its name is not durable before the folder is synced."""
    if disk.exists(path):
        disk.remove(path)
    file = disk.open(path, create=True)
    try:
        file.write(0, [content])
        file.sync(label)
    except OSError:
        file.close()
        disk.remove(path)
        raise
    file.close()
