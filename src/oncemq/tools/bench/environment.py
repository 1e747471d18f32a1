"""The environment of the cases: a broker, a folder on its disk, and the time for each case."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import oncemq
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess
from oncemq.tools.bench import processes
from oncemq.tools.bench.transports import open_wire, transport_of
from oncemq.tools.bench.upper_bounds import RawDisk

#: After this many snapshots segments are recycled, as they are in long runs.
_WARM_SNAPSHOTS = 3
_WARM_SECONDS_MAX = 20.0
#: Open files of a broker with many connections.
DESCRIPTORS = 16_000


class Environment:
    """A broker to measure, and the upper bounds of its machine."""

    def __init__(
        self, url: str, folder: Path, seconds: float, broker_pid: int = 0, server_cpus: Collection[int] = ()
    ) -> None:
        """`server_cpus`: where the peers of the bounds run, if they are pinned."""
        self.url = url
        #: The process id of the own broker; 0 for another broker.
        self.broker_pid = broker_pid
        self.seconds = seconds
        self.transport = transport_of(url)
        self.disk = RawDisk(folder)
        self.echo = open_wire("echo", self.transport, server_cpus)
        self.sink = open_wire("sink", self.transport, server_cpus)

    def close(self) -> None:
        self.disk.close()
        self.echo.close()
        self.sink.close()

    def connect(self, **options: Any) -> oncemq.Client:
        client: oncemq.Client = oncemq.connect(self.url, tries=20, **options)
        return client

    def broker_cpu_s(self) -> float:
        """Return the CPU time of the broker so far; 0 if it is not known."""
        return processes.cpu_s(self.broker_pid) if self.broker_pid else 0.0

    def counters(self) -> dict[str, int]:
        with self.connect() as client:
            return client.health().counters


@contextmanager
def open_environment(
    url: str | None, seconds: float, progress: Callable[[str], None], is_pinned: bool = False
) -> Iterator[Environment]:
    """Use the broker at `url`, or start one on the disk of the current folder, warm it up, and delete it afterwards.

    With `is_pinned`, servers have one CPU, and clients another one.
    """
    processes.allow_descriptors(DESCRIPTORS)
    with tempfile.TemporaryDirectory(prefix="oncemq-bench-", dir=".") as name:
        folder = Path(name)
        refuse_tmpfs(name)
        own = BrokerProcess(folder / "data") if url is None else None
        with own or nullcontext(), _pinned(own, is_pinned) as server_cpus:
            broker_pid = own.pid if own else 0
            environment = Environment(url or (own.url if own else ""), folder, seconds, broker_pid, server_cpus)
            try:
                if own is not None:
                    progress("warming up")
                    _warm_up(environment)
                yield environment
            finally:
                environment.close()


@contextmanager
def _pinned(own: BrokerProcess | None, is_pinned: bool) -> Iterator[Collection[int]]:
    """Pin the own broker and this process. Yields the CPUs for other servers; none if nothing is pinned."""
    if not is_pinned:
        yield ()
        return
    server_cpus, client_cpus = processes.server_and_client_cpus()
    if own is not None:
        processes.pin(own.pid, server_cpus)
    with processes.pinned_here(client_cpus):
        yield server_cpus


def refuse_tmpfs(folder: str) -> None:
    """Raise SettingInvalid if a folder is in memory."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=False).stdout
    if kind.strip() in ("tmpfs", "ramfs"):
        raise errors.SettingInvalid(
            "this folder is in memory (tmpfs), where a sync costs nothing. Run the benchmark in a folder on a disk"
        )


def _warm_up(environment: Environment) -> None:
    until = time.perf_counter() + _WARM_SECONDS_MAX
    with environment.connect() as client, Drain(client, "bench.warm") as drain:
        values = [b"w" * 1000] * 5000
        while client.health().counters.get("snapshots", 0) < _WARM_SNAPSHOTS and time.perf_counter() < until:
            for _ in range(10):
                client.put_many("bench.warm", values)
            drain.all()


class Drain:
    """A subscription whose messages are acked without being read, so that they are stored and then deleted."""

    def __init__(self, client: oncemq.Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        client.subscribe(topic, "bench")
        self._subscription = client.subscription(topic, "bench", auto_ack=False)

    def __enter__(self) -> Drain:
        return self

    def __exit__(self, *_: object) -> None:
        self._subscription.close()
        self._client.unsubscribe(self._topic, "bench")

    def all(self) -> None:
        end = next(info.end_offset for info in self._client.topics() if info.name == self._topic)
        if end:
            self._subscription.ack(end - 1)
