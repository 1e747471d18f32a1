"""Memory, descriptors, threads and zombies of the broker and its gateway, and the segments on the disk.

Samples are taken while the load runs. What must be back at its baseline is measured when all clients are gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from oncemq.journal.files.segments import OPEN_FILES_MAX
from oncemq.tools.faults.processes import children_of
from tests.soak.server import Server

#: A process may have this much more memory at the end of the steady phase than at its beginning.
GROWTH_SHARE_MAX = 0.10
GROWTH_BYTES_MAX = 16 << 20
#: No process may ever have more than this.
BYTES_MAX = 400 << 20
#: Descriptors and threads above the baseline that do not count. The gateway keeps the connections to the broker that
#: the first clients need, each with several descriptors: about 20, however long it runs.
DESCRIPTORS_SLACK = 32
THREADS_SLACK = 4
#: After everything is consumed: reserved segments, those that two snapshots need, and the newest one.
SEGMENTS_MAX = 16
#: Steady samples that are needed to judge memory.
_SAMPLES_MIN = 60
_POLL_S = 0.25


class Sample(msgspec.Struct, frozen=True):
    """The resources of one process."""

    #: Resident memory.
    bytes: int = 0
    #: Without the segments that the journal keeps open.
    descriptors: int = 0
    threads: int = 0


class Memory(msgspec.Struct, frozen=True):
    """The memory of a process during the steady phase, in bytes: medians of its second and of its last quarter."""

    process: str
    before: int
    after: int
    samples: int
    maximum: int

    @property
    def limit(self) -> int:
        return int(self.before * (1 + GROWTH_SHARE_MAX)) + GROWTH_BYTES_MAX

    def __str__(self) -> str:
        return f"{self.process} {self.before >> 20} → {self.after >> 20} MiB (max {self.maximum >> 20})"


def sample_of(pid: int) -> Sample | None:
    """Return the resources of a process; None if it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        status = (folder / "status").read_text()
        links = [link for path in (folder / "fd").iterdir() if (link := _link(path))]
    except OSError:
        return None
    numbers = {name: rest.split() for name, _, rest in (line.partition(":") for line in status.splitlines())}
    if "RssAnon" not in numbers:
        return None
    return Sample(
        # Without pages of files, which the kernel drops and reads again as it likes.
        bytes=int(numbers["RssAnon"][0]) << 10,
        descriptors=count_descriptors(links),
        threads=int(numbers["Threads"][0]),
    )


def count_descriptors(links: Sequence[str]) -> int:
    """Count the descriptors of a process, given what they refer to, without the segments that a journal keeps open."""
    return len(links) - min(sum("/segments/" in link for link in links), OPEN_FILES_MAX)


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        # The descriptor was closed meanwhile.
        return ""


class Watch:
    """Samples of the broker and its gateway over a run."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._steady: dict[str, list[int]] = {"broker": [], "gateway": []}
        self._pids: dict[str, int] = {}
        self._maximum = {"broker": 0, "gateway": 0}
        self._baseline: dict[str, Sample] = {}
        self.last: dict[str, Sample] = {}

    def look(self, *, is_steady: bool) -> None:
        """Take a sample. A process that was restarted starts anew."""
        for process, pid in self._processes().items():
            sample = sample_of(pid)
            if sample is None:
                continue
            self.last[process] = sample
            self._maximum[process] = max(self._maximum[process], sample.bytes)
            if self._pids.get(process) != pid:
                self._pids[process] = pid
                self._steady[process].clear()
            if is_steady:
                self._steady[process].append(sample.bytes)

    def _processes(self) -> dict[str, int]:
        if not self._server.broker.is_running():
            return {}
        gateway = self._server.gateway_pid()
        return {"broker": self._server.broker.pid} | ({"gateway": gateway} if gateway else {})

    def note_baseline(self) -> None:
        """No client is connected yet."""
        self._baseline = {process: sample_of(pid) or Sample() for process, pid in self._processes().items()}

    def end_steady(self) -> list[Memory]:
        """Return the memory of the steady phase; nothing if it was too short."""
        return [
            memory_of(process, samples, self._maximum[process])
            for process, samples in self._steady.items()
            if len(samples) >= _SAMPLES_MIN
        ]

    def problems(self, memory: Sequence[Memory]) -> list[str]:
        """Return what grew too much."""
        grown = [f"memory grew: {each}, allowed {each.limit >> 20} MiB" for each in memory if each.after > each.limit]
        large = [
            f"{process} had {size >> 20} MiB, allowed {BYTES_MAX >> 20}"
            for process, size in self._maximum.items()
            if size > BYTES_MAX
        ]
        return grown + large

    # What must be back at its baseline.

    def leftovers(self, settle_s: float) -> list[str]:
        """Wait for a while until everything is as before the first client. Returns what is not."""
        left: list[str] = []

        def look() -> bool:
            left[:] = [*self._held(), *self._zombies(), *self._segments()]
            return not left

        _settle(look, settle_s)
        return left

    def _held(self) -> list[str]:
        held = []
        for process, pid in self._processes().items():
            sample, baseline = sample_of(pid), self._baseline.get(process, Sample())
            if sample is not None and sample.descriptors > baseline.descriptors + DESCRIPTORS_SLACK:
                held.append(f"{process} holds {sample.descriptors} descriptors, {baseline.descriptors} at the start")
            if sample is not None and sample.threads > baseline.threads + THREADS_SLACK:
                held.append(f"{process} has {sample.threads} threads, {baseline.threads} at the start")
        return held

    def _zombies(self) -> list[str]:
        parents = [os.getpid(), *self._processes().values()]
        dead = [child for parent in parents for child in children_of(parent) if _is_zombie(child)]
        return [f"zombie process {child}" for child in dead]

    def _segments(self) -> list[str]:
        count = segments(self._server.data)
        return [f"{count} segments, allowed {SEGMENTS_MAX}"] if count > SEGMENTS_MAX else []


def memory_of(process: str, samples: Sequence[int], maximum: int) -> Memory:
    """Compare the last quarter of the samples with the second one: the first is the warm-up."""
    quarter = len(samples) // 4
    before, after = samples[quarter : 2 * quarter], samples[-quarter:]
    return Memory(process, int(median(before)), int(median(after)), len(samples), maximum)


def segments(data: Path) -> int:
    """Return the number of segment files of a journal."""
    return sum(1 for _ in (data / "segments").iterdir())


def _settle(is_settled: Callable[[], bool], settle_s: float) -> None:
    until_s = time.monotonic() + settle_s
    while not is_settled() and time.monotonic() < until_s:
        time.sleep(_POLL_S)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False
