"""Room that an outbox holds beside its file, for the day when the disk is full.

What waits in a full outbox is to be sent all the same, and every step of that writes a little: opening, the broker's
greeting, marking what has happened. When one of them finds no room, the reserve is given up, and it is tried again.
What is put never uses it: without a reserve nothing is taken in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil

#: The log up to its next checkpoint, and as much for the file into which that is written.
RESERVE_BYTES = 2 * 1024 * 1024
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Reserve:
    def __init__(self, path: str) -> None:
        self._path = path + "-reserve"
        self._is_held = False

    def hold(self) -> bool:
        """Make it where it is not there. False: there is no room for it."""
        if not self._is_held:
            self._is_held = self._size() == RESERVE_BYTES or self._make()
        return self._is_held

    def give_up(self) -> bool:
        """False: there is none."""
        self._is_held = False
        try:
            os.remove(self._path)
        except FileNotFoundError:
            return False
        return True

    def free_bytes(self) -> int:
        """Of the disk."""
        return shutil.disk_usage(os.path.dirname(self._path)).free

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def _make(self) -> bool:
        try:
            _make(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.remove(self._path)
            # Where it can't be made for another reason, the outbox does without.
            return error.errno not in _FULL
        return True


def _make(path: str) -> None:
    with open(path, "wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        else:
            file.write(bytes(RESERVE_BYTES))
