"""The disk interface on the operating system: files under one root folder.

A sync is fdatasync on Linux and F_FULLFSYNC on macOS, if the file system supports it (best effort). On other systems it
refuses to work, because it is not known there what a sync makes durable.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from oncemq.protocol import errors

_IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)
#: Up to this size one copy is cheaper than a list of parts.
_JOIN_BYTES_MAX = 512 * 1024
_PART_BYTES_MIN = 16 * 1024
#: Messages are nobody else's business.
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
#: How long to wait for a free descriptor. Connections may use those that are in reserve for files only until they are
#: refused, which takes a moment if many come at once.
_DESCRIPTOR_WAIT_S = 10.0
_DESCRIPTOR_PAUSE_S = 0.01

_T = TypeVar("_T")


def durable_sync(descriptor: int) -> None:
    """Make content and size of a file durable."""
    if sys.platform == "linux":
        os.fdatasync(descriptor)
    elif sys.platform == "darwin":
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError:
            os.fsync(descriptor)
    else:
        raise _unsupported()


def _unsupported() -> errors.JournalError:
    return errors.JournalError(f"OnceMQ does not know how to sync durably on {sys.platform}; run it on Linux")


def _with_descriptor(call: Callable[[], _T]) -> _T:
    """Make a call that opens a file. If the process has no descriptor left, wait for one: a journal that can't open a
    file would end the broker."""
    until_s = time.monotonic() + _DESCRIPTOR_WAIT_S
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or time.monotonic() > until_s:
                raise
            time.sleep(_DESCRIPTOR_PAUSE_S)


_disks: weakref.WeakSet[OsDisk] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for disk in list(_disks):
        disk.disown()


os.register_at_fork(after_in_child=_after_fork_in_child)


class OsFile:
    __slots__ = ("__weakref__", "_descriptor", "_disk")

    def __init__(self, disk: OsDisk, descriptor: int) -> None:
        self._disk = disk
        self._descriptor = descriptor

    def write(self, offset: int, parts: Sequence[bytes | memoryview]) -> None:
        self._disk.check_owner()
        total = sum(map(len, parts))
        if total <= _JOIN_BYTES_MAX:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            written = os.pwrite(self._descriptor, data, offset)
            if written < total:
                self._write_all(offset + written, [memoryview(data)[written:]])
            return
        self._write_all(offset, _merge_small(parts))

    def _write_all(self, offset: int, parts: Sequence[bytes | memoryview]) -> None:
        """Write until everything is written: the system may accept less than that at a time."""
        left = [memoryview(part) for part in parts]
        first = 0
        while first < len(left):
            written = os.pwritev(self._descriptor, left[first : first + _IOV_MAX], offset)
            offset += written
            while first < len(left) and written >= len(left[first]):
                written -= len(left[first])
                first += 1
            if written:
                left[first] = left[first][written:]

    def read(self, offset: int, size: int) -> bytes:
        self._disk.check_owner()
        data = os.pread(self._descriptor, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._descriptor, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def sync(self, label: str) -> None:  # noqa: ARG002 - the label is for disks that can leave a sync out
        self._disk.check_owner()
        durable_sync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _merge_small(parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return large parts unchanged, and join the small parts between them."""
    result: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for part in parts:
        if len(part) < _PART_BYTES_MIN:
            small.append(part)
            continue
        if small:
            result.append(b"".join(small))
            small = []
        result.append(part)
    if small:
        result.append(b"".join(small))
    return [part for part in result if len(part)]


class OsLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OsDisk:
    """`read_only` is for inspecting a journal in a folder that may not be writable."""

    def __init__(self, root: str | Path, *, read_only: bool = False) -> None:
        if sys.platform not in ("linux", "darwin"):
            raise _unsupported()
        self._root = os.path.abspath(root)
        self._read_only = read_only
        self._forked = False
        self._files: weakref.WeakSet[OsFile] = weakref.WeakSet()
        self._locks: list[OsLock] = []
        if not read_only:
            self._make_root()
        _disks.add(self)

    def _make_root(self) -> None:
        missing = []
        path = self._root
        while not os.path.isdir(path):
            if os.path.exists(path):
                raise errors.JournalError(f"the data folder {self._root} can't be created: {path} is a file")
            missing.append(path)
            path = os.path.dirname(path)
        try:
            for path in reversed(missing):
                os.mkdir(path, _FOLDER_MODE if path == self._root else 0o777)
                _sync_folder(os.path.dirname(path))
        except OSError as error:
            raise errors.JournalError(f"the data folder {self._root} can't be created: {error.strerror}") from None

    def check_owner(self) -> None:
        if self._forked:
            raise errors.ForkedError(f"the journal in {self._root} belongs to the parent process")

    def disown(self) -> None:
        """Close everything in a forked child: its copies of the descriptors would hold the lock after the parent
        ends."""
        self._forked = True
        for lock in self._locks:
            lock.close()
        for file in list(self._files):
            file.close()

    def _path(self, path: str) -> str:
        self.check_owner()
        return os.path.join(self._root, path) if path else self._root

    def describe(self) -> str:
        return f"file:{self._root}"

    def open(self, path: str, create: bool = False) -> OsFile:
        access = os.O_RDONLY if self._read_only else os.O_RDWR
        flags = access | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        location = self._path(path)
        file = OsFile(self, _with_descriptor(lambda: os.open(location, flags, _FILE_MODE)))
        self._files.add(file)
        return file

    def exists(self, path: str) -> bool:
        return os.path.exists(self._path(path))

    def list(self, folder: str) -> list[str]:
        location = self._path(folder)
        return sorted(_with_descriptor(lambda: os.listdir(location)))

    def make_folder(self, folder: str) -> None:
        os.makedirs(self._path(folder), _FOLDER_MODE, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))

    def remove(self, path: str) -> None:
        os.remove(self._path(path))

    def sync_folder(self, folder: str, label: str) -> None:  # noqa: ARG002
        _sync_folder(self._path(folder))

    def free_bytes(self) -> int:
        info = os.statvfs(self._root)
        return info.f_bavail * info.f_frsize

    def lock(self, path: str) -> OsLock:
        descriptor = self._open_lock(self._path(path))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise errors.JournalLocked(
                f"{self._root} is in use by the process with pid {owner}. {errors.JournalLocked.advice}"
            ) from None
        # The pid is only for people: a disk that is too full for it must not prevent the broker from starting.
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, f"{os.getpid():<10}\n".encode(), 0)
        lock = OsLock(descriptor)
        self._locks.append(lock)
        return lock

    def _open_lock(self, path: str) -> int:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        except OSError as error:
            # A file that is not writable can be locked too.
            if self._read_only:
                with contextlib.suppress(OSError):
                    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            raise errors.JournalError(f"the data folder {self._root} can't be written: {error.strerror}") from None


def _sync_folder(path: str) -> None:
    descriptor = _with_descriptor(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
