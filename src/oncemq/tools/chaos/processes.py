"""Processes that are forked from one that has imported everything: a start takes milliseconds, and SIGKILL is real.

The forking process stays without threads and sockets, or its children could not be forked safely. A child ends when
its parent is gone, however that went: each waits, in a thread, for the end of a pipe that only the parent holds.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from oncemq.tools.chaos.plan import BROKER

#: An exit code beyond what a shell gives, for a child that raised.
RAISED = 70
_BYE = b"bye"
#: After the end of whoever is guarded.
_LOOKS = 5
_LOOK_S = 0.1


class Nursery:
    """Starts children. Leave it with `close`, when they have ended."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._lifeline, self._held = os.pipe()

    def start(self, body: Callable[[], int]) -> Child:
        """SIGTERM is blocked in the child until it says how it takes it; Ctrl-C is not for it."""
        sys.stdout.flush()
        sys.stderr.flush()
        # What is sent to it before it can take it, waits.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        pid = os.fork()
        if pid == 0:
            os.close(self._held)
            _become(body, self._lifeline, self._log_path)
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        return Child(pid)

    def close(self) -> None:
        os.close(self._held)
        os.close(self._lifeline)


class Child:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code (negative: the signal), or None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout_s: float) -> int | None:
        until_s = time.monotonic() + timeout_s
        while self.poll() is None and time.monotonic() < until_s:
            time.sleep(0.005)
        return self._code

    def end(self) -> None:
        """Ask it to finish what it has in hand."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _become(body: Callable[[], int], lifeline: int, log_path: Path) -> None:
    """The child's whole life; never returns."""
    code = RAISED
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
        gc.freeze()
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
        code = body()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def _end_with_parent(lifeline: int) -> None:
    with suppress(OSError):
        os.read(lifeline, 1)
    os._exit(RAISED)


class Guardian:
    """A process that outlives this one if it is killed, ends the broker for it, and removes the folder.

    Fork it before anything else: it must not hold what others wait for the end of.
    """

    def __init__(self, folder: Path, *, removes_folder: bool) -> None:
        listening, self._telling = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._telling)
            _guard(listening, folder, removes_folder)
        os.close(listening)

    def dismiss(self) -> None:
        """Everything was cleaned up."""
        with suppress(OSError):
            os.write(self._telling, _BYE)
        os.close(self._telling)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _guard(listening: int, folder: Path, removes_folder: bool) -> None:
    """Never returns."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        if os.read(listening, len(_BYE)) != _BYE:
            _end_brokers(folder)
            if removes_folder:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def _end_brokers(folder: Path) -> None:
    """Whatever stores below the folder. More than one look: one may just be starting, and children that are just ending
    may still write."""
    for _ in range(_LOOKS):
        for pid in _pids_of_brokers(folder):
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)


def _pids_of_brokers(folder: Path) -> list[int]:
    """By their commands: nobody could have told of one that was started at the last moment."""
    data, found = os.fsencode(folder / BROKER), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if data in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found
