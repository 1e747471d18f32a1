"""Measures in rounds. In each round every candidate has a turn with each placement, so that noise of the machine hits
all of them. All servers run from the beginning to the end; those that have no turn are idle."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.others.candidates import CASES, GET, PUT, ROUND_TRIP, Candidate, connect, start_server
from benchmarks.others.contract import Connection, Server
from benchmarks.others.load import VALUE, Clients, Result, own_queue
from benchmarks.others.results import (
    PINNED,
    PLACEMENTS,
    UNPINNED,
    Bound,
    Figures,
    Row,
    Run,
    describe_machine,
    median_figures,
)
from oncemq.protocol.errors import SettingInvalid
from oncemq.tools.bench import processes
from oncemq.tools.bench.environment import refuse_tmpfs
from oncemq.tools.bench.results import quantile
from oncemq.tools.bench.transports import Transport, open_wire
from oncemq.tools.bench.upper_bounds import RawDisk

#: The time that a case runs before it is measured.
_WARM_UP_S = 0.05
#: Share of the time of a measurement for each of the bounds, after each turn.
_BOUND_SHARE = 0.2
_BOUND_TRANSPORTS = (Transport.TCP, Transport.UNIX)


class Plan(msgspec.Struct, frozen=True):
    candidates: Sequence[Candidate]
    cases: Sequence[str]
    rounds: int
    #: The time of each measurement.
    seconds: float
    placements: Sequence[str]

    @property
    def turns(self) -> int:
        """All turns, with the one of each candidate that is not recorded."""
        return (self.rounds * len(self.placements) + 1) * len(self.candidates)

    def steps(self) -> list[tuple[int, list[str]]]:
        """Return the cases for each number of clients."""
        counts = sorted({count for case in self.cases for count in CASES[case]})
        return [(count, [case for case in self.cases if count in CASES[case]]) for count in counts]


def usable_placements() -> list[str]:
    """Return all placements that this machine allows."""
    try:
        processes.server_and_client_cpus()
    except SettingInvalid:
        return [UNPINNED]
    return list(PLACEMENTS)


def measure(plan: Plan, folder: Path, progress: Callable[[str], None]) -> Run:
    """Start all servers below the folder, measure, and stop them. `progress` is called before each turn."""
    refuse_tmpfs(str(folder))
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncemq-bench-", dir=folder)))
        clients = stack.enter_context(Clients())
        servers = _start_all(plan.candidates, work, stack)
        disk = RawDisk(work)
        stack.callback(disk.close)
        rounds = _Rounds(plan, servers, clients, disk, work / "stored-echo")
        for candidate in plan.candidates:
            progress(f"warming up: {candidate.label}")
            rounds.warm_up(candidate)
        for number in range(plan.rounds):
            for placement in plan.placements:
                for candidate in plan.candidates:
                    progress(f"round {number + 1}, {placement}: {candidate.label}")
                    rounds.measure_turn(candidate, placement)
                    rounds.measure_bounds(placement)
        return rounds.run()


def _start_all(
    candidates: Sequence[Candidate], folder: Path, stack: contextlib.ExitStack
) -> dict[tuple[str, bool], Server]:
    # The path of a Unix socket has at most 107 bytes.
    sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncemq-s-")))
    servers: dict[tuple[str, bool], Server] = {}
    for candidate in candidates:
        if candidate.server_key not in servers:
            own = folder / f"server-{len(servers)}"
            own.mkdir()
            servers[candidate.server_key] = server = start_server(candidate, own, sockets)
            stack.callback(server.stop)
    return servers


_Key = tuple[Candidate, str, str, int]


class _Rounds:
    """The figures so far: of each candidate, placement, case and number of clients, those of each round."""

    def __init__(
        self, plan: Plan, servers: dict[tuple[str, bool], Server], clients: Clients, disk: RawDisk, store: Path
    ) -> None:
        """`store` is a file for an echo that stores."""
        self._plan = plan
        self._servers = servers
        self._clients = clients
        self._disk = disk
        self._store = store
        self._figures: dict[_Key, list[Figures]] = {}
        self._syncs_ms: dict[str, list[float]] = {}
        self._echoes_ms: dict[tuple[str, Transport], list[float]] = {}
        self._stored_echoes_ms: dict[tuple[str, Transport], list[float]] = {}

    def measure_bounds(self, placement: str) -> None:
        seconds = self._plan.seconds * _BOUND_SHARE
        server_cpus, client_cpus = _cpus(placement)
        with processes.pinned_here(client_cpus):
            times_s = self._disk.times(1, seconds)
            self._syncs_ms.setdefault(placement, []).append(quantile(times_s, 0.5) * 1000)
            for transport in _BOUND_TRANSPORTS:
                key = (placement, transport)
                self._echoes_ms.setdefault(key, []).append(_echo_ms(transport, server_cpus, seconds))
                stored_ms = _echo_ms(transport, server_cpus, seconds, self._store)
                self._stored_echoes_ms.setdefault(key, []).append(stored_ms)

    def warm_up(self, candidate: Candidate) -> None:
        """Fill and empty queues, without recording it. A server that has stored nothing yet is faster than one that
        has to reuse its files."""
        for _ in self._turn(candidate, self._plan.placements[-1], [(1, [PUT, GET]), (8, [PUT, GET])]):
            pass

    def measure_turn(self, candidate: Candidate, placement: str) -> None:
        """Measure all cases of a candidate."""
        for case, count, figures in self._turn(candidate, placement, self._plan.steps()):
            self._figures.setdefault((candidate, placement, case, count), []).append(figures)

    def _turn(
        self, candidate: Candidate, placement: str, steps: Sequence[tuple[int, list[str]]]
    ) -> Iterator[tuple[str, int, Figures]]:
        server = self._servers[candidate.server_key]
        address = server.addresses[candidate.transport]
        # What the one before has written without a sync must not be written during this turn.
        os.sync()
        server_cpus, client_cpus = _cpus(placement)
        processes.pin(server.pid, server_cpus)
        self._clients.pin(client_cpus)
        admin = connect(candidate.module, address)
        try:
            for count, cases in steps:
                self._clients.open(candidate.module, address, count)
                for case, figures in self._measure_cases(admin, server, cases, count):
                    yield case, count, figures
                self._clients.close()
        finally:
            admin.close()

    def _measure_cases(
        self, admin: Connection, server: Server, cases: Sequence[str], count: int
    ) -> Iterator[tuple[str, Figures]]:
        """Measure the cases with this number of clients. Messages are got from the queue that the batched put has
        filled."""
        for case in cases:
            if case not in (PUT, GET):
                with _queues(admin, case, count) as queue:
                    yield case, self._measure_case(server, case, queue, is_shared=False)
        if PUT not in cases and GET not in cases:
            return
        is_shared = count > 1
        with _queues(admin, PUT, count, is_shared=is_shared) as queue:
            filled = self._measure_case(server, PUT, queue, is_shared=is_shared)
            if PUT in cases:
                yield PUT, filled
            if GET in cases:
                yield GET, self._measure_case(server, GET, queue, is_shared=is_shared)

    def _measure_case(self, server: Server, case: str, queue: str, *, is_shared: bool) -> Figures:
        if case != GET:
            # Statements are prepared, and caches filled. A get must not consume what is to be measured.
            self._clients.run(case, queue, _WARM_UP_S, is_shared)
        before_s = processes.cpu_s(server.pid)
        result = self._clients.run(case, queue, self._plan.seconds, is_shared)
        return _figures(result, processes.cpu_s(server.pid) - before_s)

    def run(self) -> Run:
        rows = [self._row(*key, rounds) for key, rounds in self._figures.items()]
        order = {case: number for number, case in enumerate(CASES)}
        rows.sort(key=lambda row: (list(PLACEMENTS).index(row.placement), order[row.case], row.clients))
        bounds = [
            Bound(
                placement,
                transport.value,
                transport.is_unix,
                median(self._syncs_ms[placement]),
                median(echoes_ms),
                median(self._stored_echoes_ms[placement, transport]),
            )
            for (placement, transport), echoes_ms in self._echoes_ms.items()
        ]
        plan = self._plan
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        return Run(rows, bounds, plan.rounds, plan.seconds, len(VALUE), describe_machine(), date)

    def _row(self, candidate: Candidate, placement: str, case: str, clients: int, rounds: list[Figures]) -> Row:
        return Row(
            broker=candidate.broker,
            server=self._servers[candidate.server_key].name,
            durability=candidate.durability,
            is_durable=candidate.is_durable,
            transport=candidate.transport.value,
            is_unix=candidate.transport.is_unix,
            client=candidate.client,
            placement=placement,
            case=case,
            clients=clients,
            figures=median_figures(rounds),
            round_rates=[round(figures.rate, 1) for figures in rounds],
        )


def _echo_ms(transport: Transport, server_cpus: Collection[int], seconds: float, store: Path | None = None) -> float:
    wire = open_wire("echo", transport, server_cpus, store)
    try:
        return quantile(wire.echo_times(seconds), 0.5) * 1000
    finally:
        wire.close()


def _figures(result: Result, server_s: float) -> Figures:
    count = max(1, result.count)
    server_us, client_us = server_s / count * 1e6, result.cpu_s / count * 1e6
    if not result.times_s:
        return Figures(result.rate, server_us, client_us)
    p50_ms, p99_ms = (quantile(result.times_s, share) * 1000 for share in (0.5, 0.99))
    return Figures(result.rate, server_us, client_us, p50_ms, p99_ms)


@contextlib.contextmanager
def _queues(admin: Connection, case: str, count: int, *, is_shared: bool = False) -> Iterator[str]:
    """Create the queue of a case, or those of its clients, and delete them afterwards."""
    name = case.replace(" ", "-")
    names = [own_queue(name, client) for client in range(count)] if case == ROUND_TRIP else [name]
    for each in names:
        admin.create(each, is_shared=is_shared)
    yield name
    for each in names:
        admin.delete(each)


def _cpus(placement: str) -> tuple[Collection[int], Collection[int]]:
    """Return the CPUs of servers and of clients."""
    if placement == PINNED:
        return processes.server_and_client_cpus()
    usable = os.sched_getaffinity(0)
    return usable, usable
