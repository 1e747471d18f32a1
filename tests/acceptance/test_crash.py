"""A short crash campaign against a broker. `make crash KILLS=1000` runs a long one."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from oncemq.testing.broker_process import BrokerProcess
from oncemq.tools.faults.checker import judge
from oncemq.tools.faults.event_log import EventLog
from tests.acceptance.campaigns.broker import gather
from tests.acceptance.campaigns.broker_clients import ClientPlan
from tests.acceptance.faults.lossy_disk import LossyDisk

CAMPAIGN_DEADLINE_S = 240


def _campaign(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.acceptance", "--only", "broker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=CAMPAIGN_DEADLINE_S, check=False)


def test_nothing_is_lost_duplicated_or_reordered_while_a_broker_is_killed_again_and_again() -> None:
    seed = random.SystemRandom().randrange(2**32)
    ended = _campaign("--kills", "30", "--seed", str(seed), "--json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [report] = json.loads(ended.stdout)
    assert report["problems"] == []
    assert sum(report["broker_kills"].values()) == 30
    assert report["more"]["deliveries"] >= report["stored"] >= report["acknowledged"] > 0
    assert {"over_oncemq", "over_oncemq+unix", "over_tcp"} <= report["more"].keys(), "every transport is used"


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
        # A snapshot holds everything; after it there is at most an empty group.
        assert client.health().counters.get("groups_replayed", 0) <= 2
        messages = client.subscription("orders", "kitchen").get_many(1000)
        assert [message.offset for message in messages] == list(range(100))


# The tools of the campaign themselves.


def _killed(disk: LossyDisk, root: Path) -> LossyDisk:
    """Return what a new process finds after the old one was killed."""
    return LossyDisk(root, 1)


def test_the_lossy_disk_loses_what_was_not_synced(tmp_path: Path) -> None:
    disk = LossyDisk(tmp_path / "disk", 1)
    disk.random.random = lambda: 1.0  # type: ignore[method-assign]
    disk.make_folder("folder")
    file = disk.open("folder/a", create=True)
    file.write(0, [b"synced"])
    file.sync("content")
    file.write(0, [b"SYNC"])
    assert file.read(0, 100) == b"SYNCed"
    assert not _killed(disk, tmp_path / "disk").exists("folder/a")
    disk = LossyDisk(tmp_path / "disk", 1)
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


A, B, FOREIGN = "a.0.0.0", "a.0.0.1", "b.0.0.0"
PUT_A, PUT_B = ("attempted", "t", A), ("attempted", "t", B)
GOT_A, GOT_B = ("delivered", "t", 0, A), ("delivered", "t", 1, B)


@pytest.mark.parametrize(
    ("publisher", "consumer", "problem"),
    [
        ([PUT_A, ("acknowledged", "t", A, 0)], [("started", 0)], "lost: a.0.0.0"),
        ([PUT_A], [("started", 0), GOT_A, ("delivered", "t", 1, A)], "it is stored 2 times"),
        ([PUT_A, PUT_B], [("started", 0), ("delivered", "t", 0, B), ("delivered", "t", 1, A)], "stored after a.0.0.1"),
        ([PUT_A], [("started", 0), ("delivered", "t", 0, FOREIGN)], "never put"),
        ([PUT_A, PUT_B], [("started", 0), GOT_A, ("started", 1), ("delivered", "t", 0, B)], "unexpected: a.0.0.1"),
        ([PUT_A], [("started", 0), GOT_A, ("acked", "t", 1), ("started", 1), GOT_A], "although 1 was acked"),
        ([PUT_A], [("started", 0), GOT_A, GOT_A], "delivered 2 times"),
        ([PUT_A, PUT_B], [("started", 0), GOT_A, GOT_B, ("started", 1), GOT_B, GOT_A], "delivered 2 times"),
        ([("error", "Fenced: no")], [("started", 0)], "Fenced"),
        ([PUT_A, PUT_B], [("started", 0), GOT_A, ("started", 1), GOT_A, GOT_B], ""),
    ],
)
def test_the_evidence_shows_what_went_wrong(
    tmp_path: Path, publisher: list[tuple[object, ...]], consumer: list[tuple[object, ...]], problem: str
) -> None:
    EventLog(tmp_path / "a.events").write(*publisher)
    EventLog(tmp_path / "c.events").write(*consumer)
    ends = {"t": len({entry[2] for entry in consumer if entry[0] == "delivered"})}
    plans = [ClientPlan("a", "singly", ("t",))], [ClientPlan("c", "acking", ("t",))]
    problems = [str(found) for found in judge(gather(tmp_path, *plans, ends)).problems]
    assert any(problem in found for found in problems) if problem else problems == []
