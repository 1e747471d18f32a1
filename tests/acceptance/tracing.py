"""Kills at the n-th system call of a thread, on its way into the kernel: strace does it, where there is one.

SQLite's and ZeroMQ's steps lie in C, where no function can be wrapped: between the write of a commit and its sync,
for instance.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import time

#: Of the network and its threads, and of an outbox's file.
CLIENT = ("sendto", "recvfrom", "write")
OUTBOX = ("pwrite64", "fdatasync", "fsync", "ftruncate")
_ATTACH_S = 10.0


@functools.cache
def problem() -> str:
    """Why strace can't be used here; empty where it can."""
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
    """It ends with the process."""
    command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}"]
    command += ["-e", f"inject={call}:signal=SIGKILL:when={nth}", "-p", str(pid)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_until_traced(pid: int) -> None:
    until_s = time.monotonic() + _ATTACH_S
    while time.monotonic() < until_s:
        with open(f"/proc/{pid}/status", "rb") as status:
            if b"\nTracerPid:\t0\n" not in status.read():
                return
        time.sleep(0.002)
    raise TimeoutError(f"nobody traces process {pid}")
