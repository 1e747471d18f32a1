"""Short runs of `oncemq chaos` with real processes: a good one, one that is sabotaged and ended by Ctrl-C, and one that
is killed. None leaves anything behind."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.processes import wait_until
from tests.forking import Forked

DEADLINE_S = 90


class Runs:
    """`oncemq chaos` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Forked] = []

    def start(self, *arguments: str) -> Forked:
        environment = {**os.environ, "TMPDIR": str(self.folder)}
        with open(os.devnull, "rb") as nothing:
            process = Forked.with_pipes(["chaos", *arguments], environment, nothing.fileno())
        self.started.append(process)
        return process

    def finish(self, process: Forked) -> tuple[int, str]:
        out, err = process.communicate(DEADLINE_S)
        assert err == b"", err.decode()
        return process.wait(), out.decode()

    def check_that_nothing_is_left(self) -> None:
        assert list(self.folder.iterdir()) == []
        assert self.processes() == []

    def processes(self) -> list[str]:
        """Return processes of any run: children are in its session, its broker has the folder on its command line."""
        sessions = {str(process.pid) for process in self.started}
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                status, command = (path / "stat").read_text(), (path / "cmdline").read_text()
            except OSError:
                continue
            state, _, _, session = status.rpartition(")")[2].split()[:4]
            if state != "Z" and path.name not in sessions and (session in sessions or str(self.folder) in command):
                found.append(f"{path.name}: {command}")
        return found


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    runs = Runs(tmp_path)
    yield runs
    for process in runs.started:
        process.kill()


def read_until(process: Forked, words: str) -> str:
    assert process.stdout is not None
    said, until_s = "", time.monotonic() + DEADLINE_S
    while words not in said:
        assert time.monotonic() < until_s, said
        chunk = os.read(process.stdout.fileno(), 65536).decode()
        assert chunk, said
        said += chunk
    return said


def test_crashes_and_lost_packets_violate_no_guarantee_also_for_push_clients(runs: Runs) -> None:
    code, said = runs.finish(runs.start("--seed", "7", "--seconds", "2", "--push", "--json"))
    result = json.loads(said)
    assert code == 0, said
    assert result["good"] is True
    broken = ("lost", "duplicated", "unexpected", "out_of_order", "errors")
    assert {name: result[name] for name in broken} == dict.fromkeys(broken, 0)
    assert result["problems"] == []
    assert (result["seed"], result["interrupted"], result["folder"]) == (7, False, "")
    assert result["stored"] == result["acknowledged"] + result["recovered"] > 0
    assert result["attempted"] >= result["stored"]
    assert result["delivered"] > 0
    assert result["survived"]["broker_kills"] >= 1
    assert result["survived"]["packets_lost"] >= 1
    # Faults begin when every publisher, that of the push gateway included, has stored a message.
    assert result["push"] is True
    assert result["repeat"] == "oncemq chaos --seed 7 --seconds 2 --push"
    runs.check_that_nothing_is_left()


def test_the_guarantees_hold_over_zeromq_too(runs: Runs) -> None:
    code, said = runs.finish(runs.start("--seed", "8", "--seconds", "1", "--transport", "zeromq", "--json"))
    result = json.loads(said)
    assert (code, result["good"], result["transport"]) == (0, True, "zeromq"), said
    assert result["survived"]["packets_lost"] >= 1
    assert result["repeat"] == "oncemq chaos --seed 8 --seconds 1 --transport zeromq"


def test_a_network_that_forges_answers_is_noticed_and_ctrl_c_ends_it_with_the_verdict_so_far(runs: Runs) -> None:
    kept = runs.folder / "kept"
    run = runs.start("--seed", "17", "--seconds", "600", "--sabotage", "lose", "--keep", str(kept))
    said = read_until(run, "is back: process 2")
    run.send_signal(signal.SIGINT)
    code, rest = runs.finish(run)
    assert code == 1, said + rest
    assert "verdict  BAD: " in rest
    assert "at the broker: it was acknowledged, and is not stored" in rest
    assert f"The evidence is in {kept}" in rest
    assert rest.endswith("Repeat it with: oncemq chaos --seed 17 --seconds 600 --sabotage lose\n")
    assert {"auditor.events", "broker", "broker.log", "pub-1.events"} <= {path.name for path in kept.iterdir()}
    assert "new subscriber 'sub-1' to topic" in (kept / "broker.log").read_text()
    assert runs.processes() == []


def test_killed_it_leaves_nothing_behind(runs: Runs) -> None:
    run = runs.start("--seed", "3", "--seconds", "600")
    read_until(run, "of faults for 7 clients")
    run.kill()
    wait_until(lambda: runs.processes() == [] and list(runs.folder.iterdir()) == [], "everything is gone")


def test_a_folder_that_is_not_empty_is_refused(runs: Runs) -> None:
    (runs.folder / "something").touch()
    for option in ("--keep", "--record"):
        run = runs.start(option, str(runs.folder))
        out, err = run.communicate()
        assert (run.wait(), out) == (2, b"")
        assert f"error: {option}: '{runs.folder}' is not empty" in err.decode()
