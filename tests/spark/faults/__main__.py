"""`make crash-spark`: the campaign, a line for each kill, and a verdict.

`--seed` repeats the plan of kills. The timing of the processes still differs from run to run.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.spark.faults.campaign import Account, Campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.faults")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="folder to use and keep; default: a temporary one, removed after success",
    )
    options = parser.parse_args()
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    folder = options.folder or Path(tempfile.mkdtemp(prefix="oncemq-crash-spark-"))
    _say(f"seed {seed}, in {folder}")
    try:
        account = Campaign(folder, seed, _say).run(options.kills)
    except AssertionError as failure:
        _say(f"FAILED: {failure}")
        return 1
    _say(_verdict(account))
    if account.problems:
        _say(f"Repeat with: python -m tests.spark.faults --kills {options.kills} --seed {seed}")
        return 1
    if options.folder is None:
        shutil.rmtree(folder)
    return 0


def _verdict(account: Account) -> str:
    lines = [
        f"{account.kills.total()} kills of the driver: {_list(account.kills)}",
        f"other faults: {_list(account.faults) or 'none'}",
        f"{account.messages} messages, {account.batches} batches, {account.rows} rows, {account.seconds:g} s",
        *(f"PROBLEM: {problem}" for problem in account.problems),
        "FAILED" if account.problems else "every message once, and in order",
    ]
    return "\n".join(lines)


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
