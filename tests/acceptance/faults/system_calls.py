"""Kills a process at the n-th system call of a thread, on its way into the kernel, with strace.

SQLite, ZeroMQ and sockets are written in C, where no function can be wrapped: for example between the write of a commit
and its sync.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import time

#: System calls of the network and its threads, and of the file of an outbox.
CLIENT = ("sendto", "sendmsg", "recvfrom", "write")
OUTBOX = ("pwrite64", "fdatasync", "fsync", "ftruncate")
_ATTACH_S = 10.0


@functools.cache
def problem() -> str:
    """Return why strace can't be used here, or an empty text."""
    strace = shutil.which("strace")
    if strace is None:
        return "strace is not installed"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as target:
        tracer = attach(target.pid, "fsync", 1)
        try:
            wait_until_traced(target.pid)
        except TimeoutError:
            return "strace can't trace other processes here"
        finally:
            target.kill()
            tracer.wait()
    return ""


def attach(pid: int, call: str, nth: int) -> subprocess.Popen[bytes]:
    """Start strace. It ends with the process."""
    command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}"]
    command += ["-e", f"inject={call}:signal=SIGKILL:when={nth}", "-p", str(pid)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_until_traced(pid: int) -> None:
    """Wait until strace is attached. Raises TimeoutError."""
    until_s = time.monotonic() + _ATTACH_S
    while time.monotonic() < until_s:
        with open(f"/proc/{pid}/status", "rb") as status:
            if b"\nTracerPid:\t0\n" not in status.read():
                return
        time.sleep(0.002)
    raise TimeoutError(f"process {pid} is not traced")
