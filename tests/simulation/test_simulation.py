"""The simulation as a test: seeds have no violation, every planted bug is caught, and every run is repeatable."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemq import journal
from tests.simulation.bugs import BUGS, SYNC_LABELS, Bug
from tests.simulation.campaign import Result, failure, quiet, run_campaign, run_one
from tests.simulation.run import run_seed

SEEDS = 150
SEEDS_PER_BUG = 500
#: Functions whose last argument is the label of a sync.
_SYNCING = {"sync", "sync_folder", "write_head", "write_file"}

#: Modules that run only offline, on a journal that no broker uses.
_OFFLINE = {"cut.py"}


@pytest.fixture(scope="module")
def campaign() -> Result:
    return run_campaign(range(SEEDS))


@pytest.fixture
def _quiet() -> Iterator[None]:
    with quiet():
        yield


def test_no_promise_is_broken(campaign: Result) -> None:
    assert campaign.failed is None, "\n" + failure(campaign.failed)
    assert campaign.seeds == SEEDS


def test_every_event_and_every_fault_occurs(campaign: Result) -> None:
    assert campaign.missing() == []
    assert campaign.tally["commands"] >= 250 * SEEDS
    assert campaign.tally["crashes"] >= 6 * SEEDS


def test_every_sync_is_reached(campaign: Result) -> None:
    reached = {name.removeprefix("sync: ") for name in campaign.tally if name.startswith("sync: ")}
    assert {label for label in reached if not label.startswith("speed: ")} == set(SYNC_LABELS)


def test_every_sync_of_the_journal_is_left_out_in_turn() -> None:
    found = set()
    for path in Path(journal.__file__).parent.rglob("*.py"):
        if path.name in _OFFLINE:
            continue
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", getattr(call.func, "id", "")) in _SYNCING:
                last = call.args[-1] if call.args else None
                if isinstance(last, ast.Constant) and isinstance(last.value, str):
                    found.add(last.value)
    assert {label for label in found if not label.startswith("speed: ")} == set(SYNC_LABELS)


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("bug", BUGS.values(), ids=list(BUGS))
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    seeds = [bug.hint, *(seed for seed in range(SEEDS_PER_BUG) if seed != bug.hint)]
    assert any(run_one((seed, bug.name)).violation for seed in seeds), f"{bug.what}: not caught"


@pytest.mark.usefixtures("_quiet")
def test_the_same_seed_is_the_same_run() -> None:
    first, second = run_seed(4), run_seed(4)
    assert (first.digest, first.transcript, first.tally) == (second.digest, second.transcript, second.tally)


@pytest.mark.usefixtures("_quiet")
def test_a_run_does_not_depend_on_the_order_of_sets_and_hashes() -> None:
    script = "from tests.simulation.run import run_seed; print([run_seed(seed).digest for seed in range(8)])"
    root = Path(__file__).parents[2]
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert digests == {f"{[run_seed(seed).digest for seed in range(8)]}\n"}


def test_a_failure_says_how_to_repeat_it() -> None:
    result = run_campaign([0], bug="ack_runs_ahead")
    assert result.failed is not None
    text = failure(result.failed, "ack_runs_ahead")
    assert "seed 0: " in text
    assert text.endswith("python -m tests.simulation --seed 0 --bug ack_runs_ahead")
