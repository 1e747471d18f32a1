"""The crash campaign, a short one. `make crash KILLS=1000` runs a long one."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.evidence import Evidence
from tests.acceptance.shim_disk import ShimDisk
from tests.acceptance.workers import Plan

CAMPAIGN_DEADLINE_S = 240


def _campaign(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.acceptance.crash", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=CAMPAIGN_DEADLINE_S, check=False)


def test_nothing_is_lost_doubled_or_reordered_while_a_broker_is_killed_again_and_again() -> None:
    seed = random.SystemRandom().randrange(2**32)
    ended = _campaign("--kills", "30", "--seed", str(seed), "--json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["problems"] == []
    assert sum(count for kind, count in summary["kills"].items() if kind != "worker") == 30
    assert summary["puts_acknowledged"] > 0
    assert summary["deliveries"] >= summary["messages_stored"] >= summary["puts_acknowledged"]


def test_a_put_that_is_sent_while_the_broker_is_down_is_stored_once_it_is_back(broker_process: BrokerProcess) -> None:
    broker_process.start()
    with broker_process.connect(name="producer") as client:
        subscription = client.subscribe("orders", "kitchen")
        client.put("orders", "one pizza")
        broker_process.kill()
        handle = client.put_nowait("orders", "two salads")
        broker_process.start(wait=False)
        assert handle.result(timeout_s=30).offset == 1
        assert [message.text for message in subscription.get_many(10, timeout_s=30)] == ["one pizza", "two salads"]
        assert subscription.get() is None


def test_sigterm_ends_a_broker_with_0_and_leaves_nothing_to_replay(broker_process: BrokerProcess) -> None:
    broker_process.start()
    with broker_process.connect() as client:
        client.subscribe("orders", "kitchen")
        client.put_many("orders", [b"%d" % number for number in range(100)])
    assert broker_process.stop() == 0
    broker_process.start()
    with broker_process.connect() as client:
        # A snapshot holds everything; behind it there is at most an empty group.
        assert client.health().counters.get("groups_replayed", 0) <= 2
        messages = client.subscription("orders", "kitchen").get_many(1000)
        assert [message.offset for message in messages] == list(range(100))


# The tools of the campaign themselves.


def _killed(disk: ShimDisk, root: Path) -> ShimDisk:
    """What a new process finds after the old one was killed."""
    return ShimDisk(root, 1)


def test_the_shim_disk_loses_what_was_not_synced(tmp_path: Path) -> None:
    disk = ShimDisk(tmp_path / "disk", 1)
    disk.random.random = lambda: 1.0  # type: ignore[method-assign]
    disk.make_folder("folder")
    file = disk.open("folder/a", create=True)
    file.write(0, [b"synced"])
    file.sync("content")
    file.write(0, [b"SYNC"])
    assert file.read(0, 100) == b"SYNCed"
    assert not _killed(disk, tmp_path / "disk").exists("folder/a")
    disk = ShimDisk(tmp_path / "disk", 1)
    disk.random.random = lambda: 1.0  # type: ignore[method-assign]
    file = disk.open("folder/a", create=True)
    file.write(0, [b"synced"])
    file.sync("content")
    disk.sync_folder("folder", "name")
    file.write(0, [b"SYNC"])
    disk.rename("folder/a", "folder/b")
    assert disk.list("folder") == ["b"]
    survivor = _killed(disk, tmp_path / "disk")
    assert survivor.list("folder") == ["a"]
    assert survivor.open("folder/a").read(0, 100) == b"synced"


@pytest.mark.parametrize(
    ("publisher", "consumer", "problem"),
    [
        (["will t a.0.0.0", "done t a.0.0.0 0"], ["life 0"], "lost"),
        (["will t a.0.0.0", "done t a.0.0.0 0"], ["life 0", "got 0 a.0.0.0", "got 1 a.0.0.0"], "2 times"),
        (["will t a.0.0.0", "will t a.0.0.1"], ["life 0", "got 0 a.0.0.1", "got 1 a.0.0.0"], "came after"),
        (["will t a.0.0.0"], ["life 0", "got 0 b.0.0.0"], "never put"),
        (["will t a.0.0.0", "will t a.0.0.1"], ["life 0", "got 0 a.0.0.0", "life 1", "got 0 a.0.0.1"], "was a.0.0.0"),
        (["will t a.0.0.0"], ["life 0", "got 0 a.0.0.0", "acked 1", "life 1", "got 0 a.0.0.0"], "began at 0"),
        (["will t a.0.0.0"], ["life 0", "got 0 a.0.0.0", "got 0 a.0.0.0"], "got 0 where 1"),
        (["error Fenced: no"], ["life 0"], "Fenced"),
    ],
)
def test_the_evidence_shows_what_went_wrong(
    tmp_path: Path, publisher: list[str], consumer: list[str], problem: str
) -> None:
    (tmp_path / "a.diary").write_text("\n".join(publisher))
    (tmp_path / "c.diary").write_text("\n".join(consumer))
    end = len({line.split()[1] for line in consumer if line.startswith("got")})
    verdict = Evidence(tmp_path, {"t": end}).judge([Plan("a", "singly", ("t",))], [Plan("c", "acking", ("t",))])
    assert any(problem in found for found in verdict.problems), verdict.problems
