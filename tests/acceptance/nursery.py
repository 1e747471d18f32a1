"""Processes of the crash campaign, forked from one that has imported everything: a start takes milliseconds.

The campaign's own process stays without threads and sockets, or its children could not be forked safely.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

#: An exit code beyond what a shell gives, for a child that raised.
RAISED = 70


class Child:
    """A forked process. `body` gets a function that says "ready" to the parent."""

    def __init__(self, body: Callable[[Callable[[], None]], int], log_path: Path) -> None:
        self.started_s = time.monotonic()
        self._ready, ready = os.pipe()
        self._status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._ready)
            _become(body, ready, log_path)
        os.close(ready)

    def wait_ready(self, timeout_s: float) -> bool:
        """True: it said "ready"; False: not within this time, or it ended."""
        readable, _, _ = select.select([self._ready], [], [], max(0.0, timeout_s))
        return bool(readable) and bool(os.read(self._ready, 1))

    def poll(self) -> int | None:
        """The exit code (negative: the signal), or None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._end(status)
        return self._status

    def wait(self, timeout_s: float) -> int | None:
        until = time.monotonic() + timeout_s
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        return self._status

    def signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> int:
        """SIGKILL; returns how it really ended."""
        self.signal(signal.SIGKILL)
        if self._status is None:
            self._end(os.waitpid(self.pid, 0)[1])
        assert self._status is not None
        return self._status

    def _end(self, status: int) -> None:
        self._status = os.waitstatus_to_exitcode(status)
        os.close(self._ready)


def _become(body: Callable[[Callable[[], None]], int], ready: int, log_path: Path) -> None:
    """The child's whole life; never returns."""
    code = RAISED
    try:
        os.setpgid(0, 0)
        gc.freeze()
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = body(lambda: void(os.write(ready, b"!")))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def void(_value: object) -> None:
    pass
