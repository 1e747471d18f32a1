"""Runs many seeds in several processes, adds up their counters, and says how to repeat a failure."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from oncemq.engine import events
from tests.simulation.bugs import BUGS
from tests.simulation.run import Outcome, run_seed

#: Number of seeds per garbage collection, which takes longer than a seed.
_SEEDS_PER_COLLECTION = 25
EVENT_KINDS = sorted(kind.__name__ for kind in events.Event.__args__)
NETWORK_FAULTS = ("lost", "duplicated", "reordered", "damaged", "partition", "cut off", "no broker")
DISK_FAULTS = (
    "power loss",
    "kill",
    "write kept",
    "write dropped",
    "write torn",
    "write flipped",
    "name lost",
    "sync failed",
    "read failed",
    "no space",
    "full for a while",
)
#: Events that clients must survive.
CLIENT_FATES = (
    "crash",
    "reconnect",
    "broker away",
    "FENCED",
    "SESSION_UNKNOWN",
    "fenced owner",
    "sought",
    "dropped",
    "subscription expired",
    "settle came too late",
    "staged too late",
    "OUTBOX_REWOUND",
    "right taken away",
    "right given back",
)
#: Events that brokers must survive, most of them on a shared journal.
TURNS = (
    "take-over",
    "fenced",
    "kill of the active one",
    "stop of the active one",
    "commit of unknown outcome",
    "replaced before its append",
    "replaced before its sync",
    "replaced before its answers",
    "replaced before its hold",
    "clock leaps",
)
OUTBOX_FAULTS = ("killed before a write", "killed within a write", "killed after a write", "restored from a copy")


class Result(msgspec.Struct):
    seeds: int
    seconds: float
    tally: dict[str, int]
    failed: Outcome | None

    def missing(self) -> list[str]:
        """Return the kinds of events and faults that did not occur."""
        wanted = [f"event: {kind}" for kind in EVENT_KINDS]
        wanted += [f"network: {kind}" for kind in NETWORK_FAULTS]
        wanted += [f"disk: {kind}" for kind in DISK_FAULTS]
        wanted += [f"client: {kind}" for kind in CLIENT_FATES]
        wanted += [f"broker: {kind}" for kind in TURNS]
        wanted += [f"outbox: {kind}" for kind in OUTBOX_FAULTS]
        return [name for name in wanted if not self.tally.get(name)]


def be_quiet() -> None:
    """Disable logging, and automatic garbage collection, which `run_one` does instead."""
    logging.disable(logging.CRITICAL)
    gc.disable()


@contextmanager
def quiet() -> Iterator[None]:
    be_quiet()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()


def run_one(task: tuple[int, str]) -> Outcome:
    seed, bug = task
    if seed % _SEEDS_PER_COLLECTION == 0:
        gc.collect()
    if not bug:
        return run_seed(seed)
    with BUGS[bug].planted():
        return run_seed(seed)


def _outcomes(seeds: Sequence[int], jobs: int, bug: str) -> Iterator[Outcome]:
    tasks = [(seed, bug) for seed in seeds]
    if jobs <= 1:
        with quiet():
            yield from map(run_one, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=be_quiet) as pool:
        yield from pool.imap(run_one, tasks, chunksize=max(1, min(20, len(tasks) // jobs)))


def run_campaign(seeds: Sequence[int], jobs: int = 1, bug: str = "", progress: bool = False) -> Result:
    """Run seeds until all are done or one fails."""
    started = time.monotonic()
    tally: Counter[str] = Counter()
    failed = None
    count = 0
    shown = 0.0
    for outcome in _outcomes(seeds, jobs, bug):
        count += 1
        tally.update(outcome.tally)
        if outcome.violation:
            failed = outcome
            break
        if progress and time.monotonic() - shown > 0.2:
            shown = time.monotonic()
            _show(f"\r{count} of {len(seeds)} seeds, {tally['commands']:,} commands, {tally['crashes']:,} crashes")
    if progress:
        _show("\r" + " " * 78 + "\r")
    return Result(count, time.monotonic() - started, dict(tally), failed)


def _show(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


# Output.


def table(result: Result) -> str:
    tally = result.tally
    lines = [
        f"{result.seeds:,} seeds in {result.seconds:.0f} s: {tally.get('commands', 0):,} commands, "
        f"{tally.get('crashes', 0):,} crashes of the broker, {tally.get('messages delivered', 0):,} messages delivered"
    ]
    for heading in (
        "broker",
        "recovery",
        "client",
        "outbox",
        "network",
        "disk",
        "event",
        "sync",
        "refused",
        "not now",
        "intruder",
    ):
        rows = sorted((name, count) for name, count in tally.items() if name.startswith(heading + ": "))
        if rows:
            lines.append("")
            lines += [f"  {name:<52} {count:>12,}" for name, count in rows]
    missing = result.missing()
    lines += ["", "did not occur: " + (", ".join(missing) or "nothing; every event and every fault did")]
    return "\n".join(lines)


def failure(outcome: Outcome, bug: str = "") -> str:
    planted = f" --bug {bug}" if bug else ""
    return "\n".join(
        [
            *outcome.transcript[-30:],
            "",
            f"seed {outcome.seed}: {outcome.violation}",
            f"repeat it:  .venv/bin/python -m tests.simulation --seed {outcome.seed}{planted}",
        ]
    )
