"""The disk seam: everything that the file journal does to a disk, and nothing else.

In production it is the operating system (`OsDisk`); in the simulator and in crash tests a disk that drops,
tears or flips what was not synced. Every sync carries a label that says what it makes durable: a test leaves
each of them out in turn and must see the damage.

Paths are relative to the disk's root, with "/" between folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class DiskFile(Protocol):
    def write(self, offset: int, parts: Sequence[bytes | memoryview]) -> None:
        """Write all parts one after the other, or raise OSError. Not durable before `sync`."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def sync(self, label: str) -> None:
        """Make the file's content and size durable."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    def close(self) -> None: ...


class Disk(Protocol):
    def describe(self) -> str: ...

    def open(self, path: str, create: bool = False) -> DiskFile:
        """Raises FileNotFoundError; with `create`, FileExistsError."""

    def exists(self, path: str) -> bool: ...

    def list(self, folder: str) -> list[str]:
        """Names, sorted."""

    def make_folder(self, folder: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Not durable before `sync_folder`."""

    def remove(self, path: str) -> None: ...

    def sync_folder(self, folder: str, label: str) -> None:
        """Make a folder's names durable."""

    def free_bytes(self) -> int: ...

    def lock(self, path: str) -> Lock:
        """Held until closed or until this process ends; raises JournalLocked. Not inherited by children."""


def write_file(disk: Disk, path: str, content: bytes, label: str) -> None:
    """A whole file, synced; its name is not."""
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
