"""Disk space that an outbox holds in reserve, next to its file.

On a full disk, the entries of the outbox must still be sent, and every step of that writes a little: opening the file,
connecting to the broker, marking operations as completed. When one of these steps finds no space, the reserve is
released and the step is tried again. Puts never use it: without a reserve, nothing is accepted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil

#: The write-ahead log up to its next checkpoint, and as much for the file into which it is written.
RESERVE_BYTES = 2 * 1024 * 1024
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Reserve:
    """A file of RESERVE_BYTES that is deleted when the space is needed."""

    def __init__(self, path: str) -> None:
        self._path = path + "-reserve"
        self._is_held = False

    def hold(self) -> bool:
        """Create the reserve if it does not exist. False: there is no space for it."""
        if not self._is_held:
            self._is_held = self._size() == RESERVE_BYTES or self._create()
        return self._is_held

    def release(self) -> bool:
        """Free the space. False: there is no reserve."""
        self._is_held = False
        try:
            os.remove(self._path)
        except FileNotFoundError:
            return False
        return True

    def free_bytes(self) -> int:
        """Free space on the disk."""
        return shutil.disk_usage(os.path.dirname(self._path)).free

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def _create(self) -> bool:
        try:
            _allocate(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.remove(self._path)
            # If it can't be created for another reason, the outbox works without it.
            return error.errno not in _FULL
        return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _allocate(path: str) -> None:
    with open(path, "wb", opener=_private) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        else:
            file.write(bytes(RESERVE_BYTES))
