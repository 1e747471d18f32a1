"""A short run of the soak with real processes: it is clean until it is sabotaged, and it notices what was planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncemq.journal.files.segments import OPEN_FILES_MAX
from tests.soak.hostile import ATTACKS
from tests.soak.plan import CLIENTS, faults_of, phase_at
from tests.soak.resources import BYTES_MAX, GROWTH_BYTES_MAX, Watch, count_descriptors, memory_of
from tests.soak.round import BODIES
from tests.soak.run import tracebacks
from tests.soak.server import Server

_TIMEOUT_S = 300


@pytest.mark.slow
def test_a_short_run_is_exact_and_finds_what_was_planted(tmp_path: Path) -> None:
    scale = ["--minutes", "0.05", "--load-s", "2", "--settle-s", "1", "--folder", str(tmp_path)]
    command = [sys.executable, "-m", "tests.soak", "--seed", "7", "--json", *scale]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEMQ_")}
    planted = ["--sabotage", "lose", "--sabotage", "double", "--sabotage", "leak"]
    done = subprocess.run([*command, *planted], capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment)
    result = json.loads(done.stdout)
    said = "\n".join(result["problems"])
    assert done.returncode == 1, done.stderr
    assert result["rounds"] == 2, said
    # Each sabotage is noticed, and nothing else is found. The message that is stored twice is also copied twice.
    counts = result["counts"]
    assert (counts["lost"], counts["duplicated"], counts["unexpected"], counts["out_of_order"]) == (1, 2, 0, 0), said
    assert "broker holds" in said
    assert "round 1:" not in said
    # Every kind of kill and message was there, and nothing is left.
    assert {*result["kills"]} >= {"broker", "broker group", "broker stop", "client"}
    assert counts["acknowledged"] > 100
    assert counts["subscriptions"] == 2 * 10
    assert list(tmp_path.iterdir()) == []


def test_the_schedule_follows_from_the_seed() -> None:
    assert [*faults_of(7, 1, "storm", 50.0)] == [*faults_of(7, 1, "storm", 50.0)]
    assert [*faults_of(7, 1, "storm", 50.0)] != [*faults_of(8, 1, "storm", 50.0)]


@pytest.mark.parametrize("load_s", [4.0, 50.0])
def test_a_steady_round_kills_clients_only_and_a_storm_kills_everything(load_s: float) -> None:
    storm = {fault.victim for fault in faults_of(7, 1, "storm", load_s)}
    assert storm == {"broker", "broker group", "broker stop", "gateway", "client"}
    assert {fault.victim for fault in faults_of(7, 1, "steady", load_s)} == {"client"}
    assert [phase_at(share) for share in (0.0, 0.2, 0.7, 0.8, 0.9)] == [
        "storm",
        "steady",
        "steady",
        "gateway kills",
        "storm",
    ]


def test_every_client_has_a_body_and_every_attack_a_name() -> None:
    assert {client.name for client in CLIENTS} == {*BODIES}
    assert len(ATTACKS) >= 10


def test_memory_that_grows_is_a_violation(tmp_path: Path) -> None:
    watch = Watch(Server(tmp_path))
    flat = memory_of("broker", [50 << 20] * 100, 60 << 20)
    growing = memory_of("gateway", [(50 << 20) + number * (GROWTH_BYTES_MAX // 20) for number in range(100)], BYTES_MAX)
    [problem] = watch.problems([flat, growing])
    assert problem.startswith("memory grew: gateway")


def test_every_descriptor_counts_except_the_segments_that_a_journal_keeps_open() -> None:
    others = ["socket:[1]", "pipe:[2]", "anon_inode:[eventpoll]", "/data/snapshots/7", "/data/cut/8 (deleted)"]
    segment = "/data/segments/000000000001"
    assert count_descriptors(others) == 5
    assert count_descriptors([*others, *[segment] * OPEN_FILES_MAX]) == 5
    assert count_descriptors([*others, *[segment] * (OPEN_FILES_MAX + 3)]) == 8


def test_an_exception_in_the_log_is_a_violation(tmp_path: Path) -> None:
    log = tmp_path / "data.log"
    log.write_text('serves\nTraceback (most recent call last):\n  File "x"\nValueError: at 0x55aa\nserves\n' * 2)
    assert tracebacks(log) == ["logged 2 times: ValueError: at 0x…"]
