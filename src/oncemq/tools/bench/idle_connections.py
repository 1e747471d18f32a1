"""What connections cost that send nothing: memory of the broker, and the time of a put of another client."""

from __future__ import annotations

from oncemq.tools.bench import processes
from oncemq.tools.bench.environment import DESCRIPTORS, Drain, Environment
from oncemq.tools.bench.peers import Peer, put_for
from oncemq.tools.bench.results import Row, make_row, quantile

_COUNT = 5_000
_ROUNDS = 3
#: Open files that the broker needs for other things.
_SPARE_DESCRIPTORS = 500
NAME = f"put one by one, {_COUNT:,} idle connections"


def measure(environment: Environment) -> list[Row]:
    """Put single messages with and without the connections, in alternating rounds."""
    count = min(_COUNT, processes.allow_descriptors(DESCRIPTORS) - _SPARE_DESCRIPTORS)
    name = NAME.replace(f"{_COUNT:,}", f"{count:,}")
    with_them: list[float] = []
    without: list[float] = []
    added_mb: list[float] = []
    each_s = environment.seconds / _ROUNDS / 2
    with environment.connect() as client, Drain(client, "bench.single") as drain:
        put_for(client, "bench.single", b"v" * 100, 0.2)
        before_mb = _broker_mb(environment)
        for _ in range(_ROUNDS):
            drain.all()
            without += put_for(client, "bench.single", b"v" * 100, each_s)
            idle = Peer("idle", environment.url.split(",")[0], str(count))
            try:
                added_mb.append(_broker_mb(environment) - before_mb)
                with_them += put_for(client, "bench.single", b"v" * 100, each_s)
            finally:
                idle.close()
    median_ms, alone_ms = quantile(with_them, 0.5) * 1000, quantile(without, 0.5) * 1000
    rows = [make_row(name, median_ms, "ms (median)", {f"without them {alone_ms:.2f}": alone_ms}, with_them)]
    if environment.broker_pid:
        rows.append(make_row(f"memory of {count:,} idle connections", max(added_mb), "MB", {"without": before_mb}))
    return rows


def _broker_mb(environment: Environment) -> float:
    return processes.resident_mb(environment.broker_pid) if environment.broker_pid else 0.0
