"""Makes a checkpoint durable. Spark writes its entries without a sync, so a power failure may take the last ones away.

The source acks a micro-batch when Spark reports that it is complete, and the broker may delete acked messages. So the
checkpoint is synced first: then the state that survives a power failure is never behind what was acked.

One sync of the file system costs less than a sync of each new entry, and also covers the state of the query.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
from collections.abc import Callable

from oncemq.spark.checkpoint.location import local_folder


def sync_checkpoint(location: str) -> None:
    """Make everything durable that Spark has written to the checkpoint. Without a location, all file systems of this
    machine are synced. File systems elsewhere make a file durable when it is closed. Raises OSError."""
    folder = local_folder(location)
    if not location and hasattr(os, "sync"):
        os.sync()
    elif folder is not None and os.path.isdir(folder):
        _sync_file_system(folder)


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


@functools.cache
def _syncfs() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    found = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return found if callable(found) else None
