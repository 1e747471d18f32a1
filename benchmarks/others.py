"""OnceMQ beside other brokers that a Python program can start, each through its own Python client.

    python -m benchmarks.others [--messages N] [--singles N] [--rounds N] [--json]

Messages of 100 bytes, one producer, then one consumer, in turn:

    single     one message after the other, each acknowledged before the next
    produce    as quickly as the client can, every message acknowledged
    consume    all of them, acknowledged

Each broker does it once as it comes, and once so that nothing is acknowledged before the disk has it; OnceMQ knows only
the latter. The median of the rounds counts. Broker and client share this machine's cores.
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


class Turn(msgspec.Struct):
    single_ms: float
    produced_per_s: float
    consumed_per_s: float


class Entrant(msgspec.Struct, frozen=True):
    name: str
    #: When it acknowledges.
    durability: str
    is_synced: bool
    #: In this folder.
    start: Callable[[Path], Broker]


def entrants() -> list[Entrant]:
    from benchmarks.others_nats import Nats
    from benchmarks.others_oncemq import OnceMQ
    from benchmarks.others_redis import Redis

    return [
        Entrant("OnceMQ", "fdatasync before each answer", True, OnceMQ),
        Entrant("NATS JetStream", "sync_interval: always", True, lambda folder: Nats(folder, is_synced=True)),
        Entrant("Redis Streams", "appendfsync always", True, lambda folder: Redis(folder, is_synced=True)),
        Entrant("NATS JetStream", "default: synced every 2 minutes", False, lambda folder: Nats(folder)),
        Entrant("Redis Streams", "appendfsync everysec", False, lambda folder: Redis(folder)),
    ]


def take_turn(entrant: Entrant, folder: Path, options: argparse.Namespace) -> Turn:
    broker = entrant.start(folder)
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
    return Turn(quantile(times_s, 0.5) * 1000, options.messages / produced_s, count / consumed_s)


def median(turns: list[Turn]) -> Turn:
    fields = Turn.__struct_fields__
    return Turn(*(quantile([getattr(turn, field) for turn in turns], 0.5) for field in fields))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--singles", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    field = entrants()
    turns: list[list[Turn]] = [[] for _ in field]
    with tempfile.TemporaryDirectory(prefix="oncemq-bench-", dir=".") as name:
        for number in range(options.rounds):
            for place, entrant in enumerate(field):
                print(f"round {number + 1}: {entrant.name}, {entrant.durability}", file=sys.stderr)
                folder = Path(name) / f"{number}-{place}"
                folder.mkdir()
                turns[place].append(take_turn(entrant, folder, options))
    medians = [median(each) for each in turns]
    if options.json:
        rows = [
            {"broker": entrant.name, "durability": entrant.durability, "is_synced": entrant.is_synced}
            | msgspec.structs.asdict(turn)
            for entrant, turn in zip(field, medians, strict=True)
        ]
        print(json.dumps(rows, indent=2))
        return
    report(field, medians)


def report(field: list[Entrant], medians: list[Turn]) -> None:
    ours = medians[0]
    print(f"{'':15} {'acknowledges after':32} {'single':>10} {'produce':>20} {'consume':>20}")
    for entrant, turn in zip(field, medians, strict=True):
        produced = f"{turn.produced_per_s:,.0f}/s {ours.produced_per_s / turn.produced_per_s:5.1f} x"
        consumed = f"{turn.consumed_per_s:,.0f}/s {ours.consumed_per_s / turn.consumed_per_s:5.1f} x"
        print(f"{entrant.name:15} {entrant.durability:32} {turn.single_ms:7.2f} ms {produced:>20} {consumed:>20}")
    print("x: how many times as quick OnceMQ is in this run.")


if __name__ == "__main__":
    main()
