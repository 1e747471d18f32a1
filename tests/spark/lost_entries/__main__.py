"""`make crash-checkpoints`: the campaign, a line for each round, and a verdict. `--seed` repeats the damages."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from oncemq.spark import session
from oncemq.testing.broker_process import BrokerProcess
from oncemq.testing.postgres import PostgresServer
from tests.spark.lost_entries.campaign import Account, Campaign
from tests.spark.lost_entries.model import ModelStream, make_model_streams
from tests.spark.lost_entries.streams import Stream, make_streams


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.lost_entries")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--model", action="store_true", help="without a JVM: a model of Spark's driver")
    options = parser.parse_args()
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory(prefix="oncemq-crash-checkpoints-") as folder:
        _say(f"seed {seed}, in {folder}")
        begin_s = time.monotonic()
        account = _run(Path(folder), seed, options.rounds, is_model=options.model)
    _say(_verdict(account, time.monotonic() - begin_s))
    if account.problems:
        _say(f"Repeat with: python -m tests.spark.lost_entries --rounds {options.rounds} --seed {seed}")
    return 1 if account.problems else 0


def _run(folder: Path, seed: int, rounds: int, *, is_model: bool) -> Account:
    with (
        _session(is_model=is_model) as spark,
        BrokerProcess(folder / "data") as broker,
        broker.connect() as client,
        PostgresServer() as postgres,
        postgres.database() as database,
    ):
        streams: Sequence[Stream | ModelStream]
        if is_model:
            streams = make_model_streams(client, broker.url, folder, database, seed)
        else:
            streams = make_streams(client, folder, database, "s")
        return Campaign(broker, spark, streams, folder, seed, _say).run(rounds)


@contextmanager
def _session(*, is_model: bool) -> Iterator[SparkSession | None]:
    if is_model:
        yield None
        return
    spark = session.build("lost-entries", master="local[2]", conf={"spark.sql.shuffle.partitions": 2})
    try:
        yield spark
    finally:
        spark.stop()


def _verdict(account: Account, seconds: float) -> str:
    lines = [
        f"{account.rounds} rounds, {account.ids} ids, {seconds:.0f} s",
        f"damages: {_list(account.damages)}",
        f"runs with a damaged checkpoint: {_list(account.results)}",
        f"remedies: {_list(account.remedies)}",
        *(f"PROBLEM: {problem}" for problem in account.problems),
        "FAILED" if account.problems else "no id was lost or doubled",
    ]
    return "\n".join(lines)


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
