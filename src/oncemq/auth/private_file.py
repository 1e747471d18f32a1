"""Files that only their owner can read. They are replaced in one step, so that no reader sees half of one."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from oncemq.protocol.errors import SettingInvalid

_FOLDER_MODE = 0o700
_LOCK_MODE = 0o600
#: A change takes milliseconds.
_LOCK_WAIT_S = 10.0
_LOCK_PAUSE_S = 0.02


def write_private(path: Path, text: str) -> None:
    """Create or replace a file with mode 0600, durably. Its folder is created too."""
    path = path.resolve()
    make_private_folder(path.parent)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            _give(file.fileno(), path)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner can enter, unless it exists."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)


@contextmanager
def changes_locked(path: Path) -> Iterator[None]:
    """Hold the lock for changes of a file. Raises SettingInvalid if another process holds it for too long."""
    path = path.resolve()
    make_private_folder(path.parent)
    # A lock file of its own, since the file is replaced with each change.
    lock = _open_lock(path.with_name(f".{path.name}.lock"), path)
    try:
        until_s = time.monotonic() + _LOCK_WAIT_S
        while not _try_lock(lock):
            if time.monotonic() > until_s:
                raise SettingInvalid(f"another command is changing {path}; try again")
            time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(lock)


def _open_lock(lock: Path, path: Path) -> int:
    """Open a lock file. Whoever owns the folder may have put a link there: it is not followed, and only a file that was
    just created is given to the owner of `path`."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(lock, flags | os.O_CREAT | os.O_EXCL, _LOCK_MODE)
    except FileExistsError:
        return os.open(lock, flags)
    _give(descriptor, path)
    return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def give_to_owner(path: Path) -> None:
    """If root has created a file or folder, give it to whom the folder around it belongs: the broker must read it."""
    if os.geteuid() == 0:
        owner = path.absolute().parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _give(descriptor: int, path: Path) -> None:
    """The same for a file that replaces `path`. If that exists, its owner stays."""
    if os.geteuid() == 0:
        owner = os.stat(path if path.exists() else path.parent)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
