"""OnceMQ compared with other brokers that a Python program can start, each through its own Python client.

    python -m benchmarks.others [--messages N] [--singles N] [--rounds N] [--json]

Messages of 100 bytes, one producer, then one consumer. Each round measures:

    single     single messages, each acknowledged before the next
    produce    as fast as the client can, every message acknowledged
    consume    all messages, including acks

Each broker runs once with its default settings, and once so that nothing is acknowledged before it is on disk; OnceMQ
has only the latter. The result is the median of the rounds. Broker and client share the cores of this machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.others_contract import Broker
from oncemq.tools.bench.results import quantile

VALUE = b"x" * 100


class RoundResult(msgspec.Struct):
    single_ms: float
    produced_per_s: float
    consumed_per_s: float


class Candidate(msgspec.Struct, frozen=True):
    name: str
    #: When it acknowledges a message.
    durability: str
    is_synced: bool
    #: Starts it in a folder.
    start: Callable[[Path], Broker]


def candidates() -> list[Candidate]:
    from benchmarks.others_nats import Nats
    from benchmarks.others_oncemq import OnceMQ
    from benchmarks.others_redis import Redis

    return [
        Candidate("OnceMQ", "fdatasync before each answer", True, OnceMQ),
        Candidate("NATS JetStream", "sync_interval: always", True, lambda folder: Nats(folder, is_synced=True)),
        Candidate("Redis Streams", "appendfsync always", True, lambda folder: Redis(folder, is_synced=True)),
        Candidate("NATS JetStream", "default: synced every 2 minutes", False, lambda folder: Nats(folder)),
        Candidate("Redis Streams", "appendfsync everysec", False, lambda folder: Redis(folder)),
    ]


def run_round(candidate: Candidate, folder: Path, options: argparse.Namespace) -> RoundResult:
    broker = candidate.start(folder)
    try:
        times_s = broker.put_singly(VALUE, options.singles)
        began_s = time.perf_counter()
        broker.put_quickly(VALUE, options.messages)
        produced_s = time.perf_counter() - began_s
        count = options.singles + options.messages
        began_s = time.perf_counter()
        broker.consume(count)
        consumed_s = time.perf_counter() - began_s
    finally:
        broker.stop()
    return RoundResult(quantile(times_s, 0.5) * 1000, options.messages / produced_s, count / consumed_s)


def median(results: list[RoundResult]) -> RoundResult:
    fields = RoundResult.__struct_fields__
    return RoundResult(*(quantile([getattr(result, field) for result in results], 0.5) for field in fields))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--singles", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    brokers = candidates()
    results: list[list[RoundResult]] = [[] for _ in brokers]
    with tempfile.TemporaryDirectory(prefix="oncemq-bench-", dir=".") as name:
        for number in range(options.rounds):
            for index, candidate in enumerate(brokers):
                print(f"round {number + 1}: {candidate.name}, {candidate.durability}", file=sys.stderr)
                folder = Path(name) / f"{number}-{index}"
                folder.mkdir()
                results[index].append(run_round(candidate, folder, options))
    medians = [median(each) for each in results]
    if options.json:
        rows = [
            {"broker": candidate.name, "durability": candidate.durability, "is_synced": candidate.is_synced}
            | msgspec.structs.asdict(result)
            for candidate, result in zip(brokers, medians, strict=True)
        ]
        print(json.dumps(rows, indent=2))
        return
    report(brokers, medians)


def report(brokers: list[Candidate], medians: list[RoundResult]) -> None:
    ours = medians[0]
    print(f"{'':15} {'acknowledges after':32} {'single':>10} {'produce':>20} {'consume':>20}")
    for candidate, result in zip(brokers, medians, strict=True):
        produced = f"{result.produced_per_s:,.0f}/s {ours.produced_per_s / result.produced_per_s:5.1f} x"
        consumed = f"{result.consumed_per_s:,.0f}/s {ours.consumed_per_s / result.consumed_per_s:5.1f} x"
        print(f"{candidate.name:15} {candidate.durability:32} {result.single_ms:7.2f} ms {produced:>20} {consumed:>20}")
    print("x: how many times as fast OnceMQ is in this run.")


if __name__ == "__main__":
    main()
