"""Processes on this machine: on which CPUs they run, their CPU time and their memory. Processes count with their
children and threads: PostgreSQL has a process for each connection, ZeroMQ and Go have threads of their own."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Collection, Iterator
from pathlib import Path

from oncemq.protocol.errors import SettingInvalid

_PROC = Path("/proc")


def server_and_client_cpus() -> tuple[set[int], set[int]]:
    """Return a CPU for the servers, and another one for the clients. Raise SettingInvalid."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(usable) < 2:
        raise SettingInvalid("processes can't be pinned: this needs two CPUs and Linux. Measure without --pin")
    return {usable[0]}, {usable[1]}


def pin(pid: int, cpus: Collection[int]) -> None:
    """Let a process, its children and all their threads run on these CPUs only. What they start inherits it."""
    for each in tree(pid):
        for thread in _threads(each):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cpus)


@contextlib.contextmanager
def pinned_here(cpus: Collection[int]) -> Iterator[None]:
    """Pin this process, and what it starts, as long as the block runs."""
    before = os.sched_getaffinity(0)
    pin(os.getpid(), cpus)
    try:
        yield
    finally:
        pin(os.getpid(), before)


def tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(_stat_fields(folder)[1]), []).append(int(folder.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def cpu_s(pid: int) -> float:
    """Return the CPU time so far of a process and its children that run now.

    The scheduler's own count is exact. Without it, the ticks of 10 ms are.
    """
    total_s = 0.0
    for each in tree(pid):
        with contextlib.suppress(OSError):
            total_s += _scheduled_s(each)
    return total_s


def _scheduled_s(pid: int) -> float:
    spent_ns = 0
    for thread in _threads(pid):
        try:
            spent_ns += int((thread / "schedstat").read_text().split()[0])
        except FileNotFoundError:
            fields = _stat_fields(_PROC / str(pid))
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent_ns / 1e9


def resident_mb(pid: int) -> float:
    """Return the memory that a process uses now."""
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1000
    raise AssertionError("no VmRSS")


def allow_descriptors(count: int) -> int:
    """Allow this process, and what it starts, this many open files if the system does. Return how many it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def _threads(pid: int) -> list[Path]:
    try:
        return list((_PROC / str(pid) / "task").iterdir())
    except FileNotFoundError:
        return []


def _stat_fields(folder: Path) -> list[str]:
    """The fields of /proc/PID/stat from the third one on. The second one, the name, may contain spaces."""
    return (folder / "stat").read_text().rpartition(")")[2].split()
