"""Measures what one hostile peer does to a listener: the memory of its process, and the latency of another peer."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

from tests.acceptance.processes import resident_bytes
from tests.hostile import attacks
from tests.hostile.cases import Case, cases
from tests.hostile.others import OTHERS, TIMEOUT_S, UNSERVED, Operation
from tests.hostile.servers import Servers

_GROWTH_MIB_MAX = 200
#: A p99 of another peer that is always good, and how many times that without an attack is.
_P99_MS_MAX = 250.0
_P99_RATIO_MAX = 20.0
CRITERION = (
    f"The attacked process grows by at most {_GROWTH_MIB_MAX} MiB and does not end, "
    f"each operation of another peer succeeds within {TIMEOUT_S:.0f} s, and its p99 is at most {_P99_MS_MAX:.0f} ms or "
    f"{_P99_RATIO_MAX:.0f} times that without an attack (except in a flood of datagrams: the kernel drops others')."
)

_MIB = 2**20
_WARM_UP_S = 1.0
_WATCH_S = 0.005


class Latency(NamedTuple):
    p50_ms: float
    p99_ms: float


#: The least latency of an operation that was not answered.
_UNSERVED = Latency(1000 * TIMEOUT_S, 1000 * TIMEOUT_S)


class Figures(NamedTuple):
    name: str
    idle_mib: float
    peak_mib: float
    #: Without an attack, before and after it: their difference shows the noise of the machine.
    before: Latency
    attacked: Latency
    after: Latency
    #: What violates the criterion, besides growth and latency.
    failure: str = ""
    limits_latency: bool = True

    @property
    def growth_mib(self) -> float:
        return self.peak_mib - self.idle_mib

    @property
    def quiet(self) -> Latency:
        return Latency(max(self.before.p50_ms, self.after.p50_ms), max(self.before.p99_ms, self.after.p99_ms))

    @property
    def p99_ratio(self) -> float:
        return self.attacked.p99_ms / self.quiet.p99_ms

    @property
    def is_good(self) -> bool:
        return self.growth_mib <= _GROWTH_MIB_MAX and not self.is_slow and not self.failure

    @property
    def is_slow(self) -> bool:
        return self.limits_latency and self.attacked.p99_ms > max(_P99_MS_MAX, _P99_RATIO_MAX * self.quiet.p99_ms)


def measure(servers: Servers, case: Case, seconds: float) -> Figures:
    """Measure a case: `seconds` with the attack, and half as long before and after it."""
    servers.prepare(case.needs)
    pid = servers.pid(case.process)
    warm_up_s = min(_WARM_UP_S, seconds)
    with OTHERS[case.other](servers) as operation:
        other = _Other(operation)
        other.latency(warm_up_s)
        idle = resident_bytes(pid)
        before = other.latency(seconds / 2)
        # What the attack has begun may take memory even after it.
        with _PeakMemory(pid) as memory:
            with attacks.running(case.attack, *case.arguments):
                attacked = other.latency(seconds)
            other.latency(warm_up_s)
            after = other.latency(seconds / 2)
    failure = other.failure or ("" if resident_bytes(pid) else "the attacked process has ended")
    latencies = (before, attacked, after)
    return Figures(case.name, idle / _MIB, memory.peak_bytes / _MIB, *latencies, failure, case.limits_latency)


class _Other:
    """A peer that behaves, until it is not served."""

    def __init__(self, operation: Operation) -> None:
        self.failure = ""
        self._operation = operation

    def latency(self, seconds: float) -> Latency:
        if self.failure:
            return _UNSERVED
        found: list[float] = []
        until_s = time.perf_counter() + seconds
        try:
            while (began_s := time.perf_counter()) < until_s:
                self._operation()
                found.append(time.perf_counter() - began_s)
        except UNSERVED as error:
            self.failure = f"another peer is not served: {error!r}"
            return _UNSERVED
        return _quantiles(found)


class _PeakMemory:
    """Watches the memory of a process."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_WATCH_S):
            self.peak_bytes = max(self.peak_bytes, resident_bytes(self._pid))


def _quantiles(latencies_s: list[float]) -> Latency:
    if len(latencies_s) < 2:
        return Latency(1000 * latencies_s[0], 1000 * latencies_s[0])
    hundredths = statistics.quantiles(latencies_s, n=100, method="inclusive")
    return Latency(1000 * hundredths[49], 1000 * hundredths[98])


def run(seconds: float, only: str, show: Callable[[Figures], None]) -> None:
    """Measure each case whose name starts with `only`."""
    with tempfile.TemporaryDirectory() as folder:
        servers = Servers(Path(folder))
        try:
            servers.start()
            for case in cases(servers):
                if case.name.startswith(only):
                    show(measure(servers, case, seconds))
        finally:
            servers.stop()
