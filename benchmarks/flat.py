"""Costs that must not grow with the amount of stored data. Run: python -m benchmarks.flat [--json] [--scale S]

topics      puts into 100,000 topics compared with puts into 10, with equal batches
batches     memory of a broker with a million live single-message batches
sessions    memory of 100,000 sessions
restart     start after a crash, with a history of length 1 and of length 10
upkeep      p99.9 of single puts during snapshots, copy-forward and zero-filling, compared with an idle broker
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.raw import RawClient, put_of
from oncemq.protocol import commands
from oncemq.testing.broker_process import BrokerProcess
from oncemq.tools.bench.peers import put_for
from oncemq.tools.bench.processes import resident_mb
from oncemq.tools.bench.results import Row, make_row, quantile

_WINDOW = 1000


def _subscribe_all(client: RawClient, topics: list[str]) -> None:
    for at in range(0, len(topics), _WINDOW):
        client.do([commands.Subscribe(topic, "s") for topic in topics[at : at + _WINDOW]])


def topics(folder: Path, scale: float) -> Row:
    """Measure the seconds for the same number of puts, in the same groups."""
    many, few = int(100_000 * scale), 10
    with BrokerProcess(folder) as broker, RawClient(broker.url) as client:
        names = [f"topic.{index}" for index in range(many)]
        _subscribe_all(client, names)
        spent = {many: 0.0, few: 0.0}
        for number in range(40):
            for among in (many, few):
                chosen = [names[(number * 500 + index) * 7919 % among] for index in range(500)]
                puts = [put_of(topic, 10, 100) for topic in chosen]
                begin = time.perf_counter()
                client.do([put for put, _ in puts], [payload for _, payload in puts])
                spent[among] += time.perf_counter() - begin
    return make_row(f"put into {many:,} topics", spent[many], "s", {f"put into {few} topics": spent[few]})


def batches(folder: Path, scale: float) -> Row:
    count = int(1_000_000 * scale)
    with BrokerProcess(folder, "--log-level", "error") as broker, RawClient(broker.url) as client:
        client.do([commands.Subscribe("many", "s")])
        put, payload = put_of("many", 1, 10)
        for _ in range(0, count, _WINDOW):
            client.do([put] * _WINDOW, [payload] * _WINDOW)
        used = resident_mb(broker.pid)
    return make_row(f"{count:,} live single-message batches", used, "MB", {"allowed": 400.0})


def sessions(folder: Path, scale: float) -> Row:
    count = int(100_000 * scale)
    with BrokerProcess(folder) as broker, RawClient(broker.url) as client:
        client.do([commands.Subscribe("t", "s")])
        before = resident_mb(broker.pid)
        put, payload = put_of("t", 1, 10)
        for at in range(0, count, _WINDOW):
            names = [f"client-{index:08d}" for index in range(at, at + _WINDOW)]
            client.call([commands.Hello(name, 0, index, 64) for index, name in enumerate(names, 1)])
            client.call([commands.Numbered(name, 1, 1, 1, put) for name in names], [payload] * _WINDOW)
        used = resident_mb(broker.pid) - before
    return make_row(f"{count:,} sessions", used, "MB", {"allowed": 100.0})


def restart(folder: Path, scale: float) -> Row:
    """Messages are put and acked. A start reads only what was written since the last snapshot."""
    spent = {}
    for times in (1, 10):
        broker = BrokerProcess(folder / str(times), "--snapshot-bytes", "16MiB")
        broker.start()
        with broker.connect() as client:
            client.subscribe("log", "s")
            with client.subscription("log", "s", auto_ack=False) as subscription:
                for _ in range(times):
                    last = client.put_many("log", [b"v" * 1000] * int(100_000 * scale))
                    subscription.ack(last.offset + last.count - 1)
        starts = []
        for _ in range(5):
            broker.kill()
            begin = time.perf_counter()
            broker.start()
            starts.append(time.perf_counter() - begin)
        broker.stop()
        spent[times] = quantile(starts, 0.5)
    return make_row("start after a crash, 10 × the history", spent[10], "s", {"1 × the history": spent[1]})


def upkeep(folder: Path, scale: float) -> Row:
    """Alternate between two brokers: one that is idle, and one that snapshots, copies and zero-fills all the time."""
    busy_flags = ("--segment-bytes", "4MiB", "--snapshot-bytes", "2MiB", "--batch-bytes-max", "1MiB")
    calm, busy = BrokerProcess(folder / "calm"), BrokerProcess(folder / "busy", *busy_flags)
    times: dict[str, list[float]] = {"calm": [], "busy": []}
    with calm, busy, calm.connect() as calm_client, busy.connect() as busy_client:
        for client in (calm_client, busy_client):
            client.subscribe("quick", "s")
            client.subscribe("slow", "s")
        with (
            calm_client.subscription("quick", "s", auto_ack=False) as calm_reader,
            busy_client.subscription("quick", "s", auto_ack=False) as busy_reader,
        ):
            for _ in range(int(50 * scale) or 1):
                for name, client, reader in (
                    ("calm", calm_client, calm_reader),
                    ("busy", busy_client, busy_reader),
                ):
                    # Messages without an ack keep live records in every segment, which copy-forward has to move.
                    for _ in range(5):
                        client.put("slow", b"v" * 1000)
                    times[name] += put_for(client, "quick", b"v" * 100, 0.3)
                    reader.ack(client.put("quick", b"last").offset)
        counters = busy_client.health().counters
    done = f"{counters.get('snapshots', 0)} snapshots, {counters.get('records_moved', 0)} records moved"
    calm_ms, busy_ms = (quantile(times[name], 0.999) * 1000 for name in ("calm", "busy"))
    return make_row(f"p99.9 of a put during {done}", busy_ms, "ms", {"without": calm_ms}, times["busy"])


CASES: dict[str, Callable[[Path, float], Row]] = {
    "topics": topics,
    "batches": batches,
    "sessions": sessions,
    "restart": restart,
    "upkeep": upkeep,
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flat", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="default: all")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size")
    options = parser.parse_args(arguments)
    for name in options.cases or CASES:
        with tempfile.TemporaryDirectory(prefix="oncemq-flat-", dir=".") as folder:
            row = CASES[name](Path(folder) / "data", options.scale)
        if options.json:
            print(msgspec.json.encode(row).decode(), flush=True)
        else:
            limit = f"{row.limit_name}: {row.limit:,.3f}"
            print(f"{row.case:<60} {row.value:>10,.3f} {row.unit:<4} {limit:<32} {row.ratio:.2f} ×", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
