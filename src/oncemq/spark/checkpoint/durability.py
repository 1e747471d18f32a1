"""Makes a checkpoint durable. Spark writes its entries without a sync, so a power failure may take the last ones away.

The source acks a micro-batch when Spark reports that it is complete, and the broker may delete acked messages. So the
checkpoint is synced first: then the state that survives a power failure is never behind what was acked.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
from collections.abc import Callable

from oncemq.spark.checkpoint.location import local_folder

_ENTRIES = ("offsets", "commits")
#: Folders of queries that write more than entries: state, and the logs of Spark's file source.
_MORE = ("state", "sources")


class CheckpointSync:
    """Syncs one checkpoint before each ack. Without a location, all file systems of the machine are synced."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._folder = local_folder(location)
        #: By folder: the last entry that is durable.
        self._synced: dict[str, int] = {}

    def sync(self) -> None:
        """Make everything durable that Spark has written to the checkpoint. Raises OSError."""
        if not self._location:
            os.sync()
        elif self._folder is not None and os.path.isdir(self._folder):
            self._sync_folder(self._folder)
        # Other file systems make a file durable when it is closed.

    def _sync_folder(self, folder: str) -> None:
        if self._synced and not any(os.path.isdir(os.path.join(folder, name)) for name in _MORE):
            # A micro-batch adds a few entries. To sync them costs less than to sync the file system, which may contain
            # much that others have written.
            for name in _ENTRIES:
                self._sync_entries(os.path.join(folder, name))
        else:
            _sync_file_system(folder)
            for name in _ENTRIES:
                path = os.path.join(folder, name)
                self._synced[path] = max(_numbers(path), default=-1)

    def _sync_entries(self, folder: str) -> None:
        """Sync the entries since the last sync, and their names."""
        last = self._synced.get(folder, -1)
        new = sorted(number for number in _numbers(folder) if number > last)
        for number in new:
            for name in (str(number), f".{number}.crc"):
                _sync_path(os.path.join(folder, name))
        if new:
            _sync_path(folder)
            self._synced[folder] = new[-1]


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]
    except FileNotFoundError:
        return []


def _sync_path(path: str) -> None:
    """Sync a file or a folder. Spark may have deleted it meanwhile."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file_system(folder: str) -> None:
    """Sync the file system of a folder; where there is no such call, the files of the folder one by one."""
    syncfs = _syncfs()
    if syncfs is not None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            if syncfs(descriptor) == 0:
                return
            if ctypes.get_errno() != errno.ENOSYS:
                raise OSError(ctypes.get_errno(), "the checkpoint's file system can't be synced", folder)
        finally:
            os.close(descriptor)
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync_path(os.path.join(path, name))
        _sync_path(path)
    _sync_path(os.path.dirname(folder))


@functools.cache
def _syncfs() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    found = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return found if callable(found) else None
