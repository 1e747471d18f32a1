"""Forked child processes: a start takes milliseconds, because everything is imported already, and SIGKILL is real.

The forking process must not have threads or sockets, or its children could not be forked safely. A child dies with its
parent, however the parent ends: the kernel sends it SIGKILL.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

#: The exit code of a child that raised an exception.
RAISED = 70
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.005
_DISMISSED = b"bye"
#: How often and how long the guardian looks for brokers after the end of the process that it guards.
_GUARD_LOOKS = 5
_GUARD_LOOK_S = 0.1


class ForkedProcess:
    """A child process that runs `body` and exits with its result. Its output goes to a log file.

    It ignores Ctrl-C. SIGTERM is blocked until the child creates a `StopRequest`.
    """

    def __init__(self, body: Callable[[], int], log_path: Path) -> None:
        self._code: int | None = None
        self.started_s = time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        # Signals that arrive before the child can handle them wait.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        parent_pid = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _run_child(body, parent_pid, log_path)
        signal.pthread_sigmask(signal.SIG_SETMASK, former)

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal), or None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end, and return the exit code; None: it is still running."""
        until_s = time.monotonic() + timeout_s
        while self.poll() is None and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        return self._code

    def signal(self, number: int) -> None:
        """Send a signal, if it is still running."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to finish its work and exit."""
        self.signal(signal.SIGTERM)

    def kill(self) -> int:
        """Send SIGKILL, and return how it really ended."""
        self.signal(signal.SIGKILL)
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


class ForkedServer(ForkedProcess):
    """A child process that reports when it is ready, and handles SIGTERM itself.

    `body` gets a function that reports "ready". It may be called several times.
    """

    def __init__(self, body: Callable[[Callable[[], None]], int], log_path: Path) -> None:
        self._ready, ready = os.pipe()

        def serve() -> int:
            os.close(self._ready)
            # A handler of the forking process must not swallow the signal.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))

            def report_ready() -> None:
                os.write(ready, b"!")

            return body(report_ready)

        super().__init__(serve, log_path)
        os.close(ready)

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._ready)

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until it reports "ready". Returns False if it does not in time, or has ended."""
        readable, _, _ = select.select([self._ready], [], [], max(0.0, timeout_s))
        return bool(readable) and bool(os.read(self._ready, 1))


class StopRequest:
    """Becomes set when this process gets SIGTERM."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))

    def _set(self, _number: int, _frame: FrameType | None) -> None:
        self.is_set = True


def _run_child(body: Callable[[], int], parent_pid: int, log_path: Path) -> None:
    """Run in the child; never returns."""
    code = RAISED
    try:
        _die_with_parent(parent_pid)
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
        gc.freeze()
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = body()
    except BaseException:
        # Not through sys.stderr, which may be another stream than descriptor 2.
        os.write(2, traceback.format_exc().encode())
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def _die_with_parent(parent_pid: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        # The parent ended before the kernel was told.
        os._exit(RAISED)


def children_of(pid: int) -> list[int]:
    """Return the children of a process; none if it has ended."""
    try:
        paths = list(Path(f"/proc/{pid}/task").glob("*/children"))
        return [int(child) for path in paths for child in path.read_text().split()]
    except OSError:
        return []


class Guardian:
    """A process that outlives this one if it is killed, and then kills its broker and deletes its folder.

    The broker is a process of another program, which does not die with its parent.
    """

    def __init__(self, data: Path, delete: Path | None) -> None:
        """`data`: the data folder of the broker. `delete`: the folder to delete."""
        reading, self._writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._writing)
            _guard(reading, data, delete)
        os.close(reading)

    def dismiss(self) -> None:
        """End the guardian: everything has been cleaned up."""
        with suppress(OSError):
            os.write(self._writing, _DISMISSED)
        os.close(self._writing)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _guard(reading: int, data: Path, delete: Path | None) -> None:
    """Run in the guardian; never returns."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        devnull = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(devnull, stream)
        if os.read(reading, len(_DISMISSED)) != _DISMISSED:
            # Several looks: a broker may just be starting, and processes that are ending may still write.
            for _ in range(_GUARD_LOOKS):
                _kill_brokers(data)
                time.sleep(_GUARD_LOOK_S)
            if delete is not None:
                shutil.rmtree(delete, ignore_errors=True)
    finally:
        os._exit(0)


def _kill_brokers(data: Path) -> None:
    """Kill every process with the data folder on its command line: its process id may not have been recorded yet."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.fsencode(data) in (process / "cmdline").read_bytes().split(b"\0"):
                os.killpg(int(process.name), signal.SIGKILL)
