"""auth.status: a file in the data folder by which commands on the same machine find the broker that runs there, and
learn whether it has accepted auth.toml.

The broker holds a lock on it as long as it runs. After a SIGHUP it reads auth.toml again, and writes the outcome.
"""

from __future__ import annotations

import fcntl
import os
import platform
import time
from pathlib import Path

import msgspec

from oncemq.protocol.errors import BrokerAway

FILE_NAME = "auth.status"
_MODE = 0o600
#: How long to wait for the lock, which a command holds for a moment to find out whether a broker runs, and for the
#: first report of a broker that starts.
_WAIT_S = 1.0
_PAUSE_S = 0.001
_BYTES_MAX = 64 * 1024


class Status(msgspec.Struct, frozen=True):
    pid: int
    #: Where the pid is valid (`process_space`).
    space: str
    #: The absolute path of auth.toml.
    file: str
    #: How often the file was read, with or without success.
    reads: int
    #: False = there are no users, and everybody may do everything.
    has_users: bool
    #: Why the file was refused when it was read last; then the former users are in force.
    error: str = ""


class StatusFile:
    """The broker's side."""

    def __init__(self, folder: Path, auth_file: Path) -> None:
        """Create the file. Only the broker that has locked the journal in the folder may do so."""
        self._file = str(auth_file.absolute())
        self._reads = 0
        self._descriptor = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        until_s = time.monotonic() + _WAIT_S
        while not _try_lock(self._descriptor, fcntl.LOCK_EX) and time.monotonic() < until_s:
            time.sleep(_PAUSE_S)
        os.ftruncate(self._descriptor, 0)

    def report(self, *, has_users: bool, error: str = "") -> None:
        """Write the outcome after auth.toml was read."""
        self._reads += 1
        status = Status(os.getpid(), process_space(), self._file, self._reads, has_users, error)
        line = msgspec.json.encode(status) + b"\n"
        # In place, because the lock belongs to this file. Readers use the first line only.
        os.pwrite(self._descriptor, line, 0)
        os.ftruncate(self._descriptor, len(line))

    def close(self) -> None:
        os.close(self._descriptor)


def running(folder: Path) -> Status | None:
    """Return the status of the broker that runs on a folder; None if none does. Raises BrokerAway or OSError."""
    try:
        descriptor = os.open(folder / FILE_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        until_s = time.monotonic() + _WAIT_S
        while not _try_lock(descriptor, fcntl.LOCK_SH):
            line = os.pread(descriptor, _BYTES_MAX, 0).partition(b"\n")[0]
            try:
                return msgspec.json.decode(line, type=Status)
            except msgspec.DecodeError:
                # It is just being written.
                if time.monotonic() > until_s:
                    raise BrokerAway(f"a broker starts on {folder}, and is not ready yet") from None
                time.sleep(_PAUSE_S)
        return None
    finally:
        os.close(descriptor)


def process_space() -> str:
    """Return where pids of this process are valid: the machine since its last boot, and its pid namespace. A container
    has a namespace of its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return platform.node()


def _try_lock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
