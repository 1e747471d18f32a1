"""Figures of one run: what was measured of each candidate, the bounds, and where. They are stored as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from statistics import median

import msgspec

PINNED = "pinned"
UNPINNED = "unpinned"
PLACEMENTS = {
    PINNED: "server on one CPU, clients on another",
    UNPINNED: "processes on all CPUs",
}


class Figures(msgspec.Struct, frozen=True):
    """One case with one number of clients; of one round, or the medians of all rounds."""

    rate: float
    #: CPU time for each message: of the server with its children, and of all clients.
    server_us: float
    client_us: float
    #: Of single messages; None for batches.
    p50_ms: float | None = None
    p99_ms: float | None = None


class Row(msgspec.Struct, frozen=True):
    """One case of one candidate."""

    broker: str
    #: The product of the server, with its version.
    server: str
    durability: str
    is_durable: bool
    transport: str
    is_unix: bool
    client: str
    placement: str
    case: str
    clients: int
    figures: Figures
    #: The rate of each round: how far the rounds are apart.
    round_rates: list[float]


class Bound(msgspec.Struct, frozen=True):
    """A raw write and sync, a raw echo, and an echo that writes and syncs before it answers, without any broker."""

    placement: str
    transport: str
    is_unix: bool
    sync_ms: float
    echo_ms: float
    #: Both in one request. It takes longer than their sum, because each of them has to wake processes and CPUs that
    #: have slept meanwhile.
    stored_echo_ms: float

    @property
    def total_ms(self) -> float:
        return self.sync_ms + self.echo_ms


class Run(msgspec.Struct, frozen=True):
    rows: list[Row]
    bounds: list[Bound]
    rounds: int
    #: The time of each measurement.
    seconds: float
    message_bytes: int
    machine: str
    date: str = ""

    @property
    def placements(self) -> list[str]:
        return [name for name in PLACEMENTS if any(row.placement == name for row in self.rows)]

    def placement(self, wanted: str) -> str:
        """Return this placement if it was measured, otherwise the other one."""
        return wanted if wanted in self.placements else self.placements[0]


def median_figures(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each figure."""

    def of(name: str) -> float | None:
        values = [value for figures in rounds if (value := getattr(figures, name)) is not None]
        return median(values) if values else None

    rate, server_us, client_us = (of(name) or 0.0 for name in ("rate", "server_us", "client_us"))
    return Figures(rate, server_us, client_us, of("p50_ms"), of("p99_ms"))


def find(rows: Sequence[Row], placement: str, case: str, clients: int, *, like: Row | None = None) -> list[Row]:
    """Return the rows of a case; with `like`, those of the same candidate."""
    return [
        row
        for row in rows
        if (row.placement, row.case, row.clients) == (placement, case, clients)
        and (like is None or identity(row) == identity(like))
    ]


def identity(row: Row) -> tuple[str, str, str]:
    """What rows of the same candidate have in common."""
    return row.broker, row.durability, row.transport


def candidates_of(run: Run, placement: str) -> list[Row]:
    """Return a row of each candidate, in the order of the run."""
    found: dict[tuple[str, str, str], Row] = {}
    for row in run.rows:
        if row.placement == placement:
            found.setdefault(identity(row), row)
    return list(found.values())


def describe_machine() -> str:
    """Return the CPUs, the kernel and Python.

    >>> "Python" in describe_machine()
    True
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cpus} CPUs, {platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}"
