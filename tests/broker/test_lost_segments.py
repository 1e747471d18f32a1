"""A broker whose older segment is lost serves the rest, and every kind of consumer gets past what is gone."""

from __future__ import annotations

import json
import logging
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import oncemq
from oncemq.broker.offline.check import check
from oncemq.cli.main import cli
from oncemq.disk.os_disk import OsDisk
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import errors

SEGMENT_BYTES = 1024 * 1024
MESSAGES = 150
LOST = "segments/000000000002"
DEADLINE_S = 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a stopped broker with messages in several segments, the second of which is lost."""
    folder = tmp_path / "data"
    FileJournal(OsDisk(folder), InlineWorker(), segment_bytes=SEGMENT_BYTES).close()
    with connected(folder) as client:
        client.subscribe("orders", "kitchen").close()
        client.subscribe_shared("orders", "cooks", start="earliest").close()
        client.subscribe_pattern("#", "pattern").close()
        client.create_topic("other")
        for number in range(MESSAGES):
            client.put("orders", f"{number} ".ljust(20_000))
        client.put("other", "here")
    (folder / LOST).unlink()
    return folder


def connected(folder: Path) -> oncemq.Client:
    return oncemq.connect(f"file:{folder}")


def lost_offsets(folder: Path) -> set[int]:
    [problem] = check(OsDisk(folder, read_only=True)).problems
    [(first, last)] = re.findall(r"offsets (\d+) to (\d+)", problem.what)
    return set(range(int(first), int(last) + 1))


def test_check_names_the_lost_messages_and_a_broker_logs_them(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    lost = lost_offsets(folder)
    report = check(OsDisk(folder, read_only=True))
    assert (report.lost_messages, report.refusal, report.is_good) == (len(lost), "", False)
    assert 10 < len(lost) < MESSAGES
    with caplog.at_level(logging.ERROR), connected(folder) as client:
        assert client.health().counters["extents_missing"] == 1
    assert "extent 2 is missing" in caplog.text


def test_the_command_line_says_what_is_lost_and_does_not_advise_to_cut(folder: Path) -> None:
    lost = lost_offsets(folder)
    run = CliRunner()
    printed = run.invoke(cli, ["journal", "check", str(folder)])
    assert printed.exit_code == 9
    assert f"A broker starts, and serves everything except {len(lost)} messages." in printed.output
    assert "Do not cut" in printed.output
    listed = run.invoke(cli, ["journal", "check", str(folder), "--json"])
    assert listed.exit_code == 9
    report = json.loads(listed.stdout)
    assert (report["lost_messages"], report["refusal"], len(report["problems"])) == (len(lost), "", 1)


def test_an_exclusive_consumer_seeks_past_lost_messages(folder: Path) -> None:
    lost = lost_offsets(folder)
    found: list[int] = []
    refusals = 0
    with connected(folder) as client, client.subscribe("orders", "kitchen") as kitchen:
        while len(found) < MESSAGES - len(lost):
            try:
                message = kitchen.get(0)
            except errors.RecordCorrupt as error:
                refusals += 1
                [next_offset] = re.findall(r"The next offset is (\d+)", error.text)
                client.seek("orders", "kitchen", int(next_offset))
                continue
            assert message is not None
            found.append(int(message.text.split()[0]))
    assert found == [number for number in range(MESSAGES) if number not in lost]
    assert 0 < refusals < len(lost)


def lag_of(client: oncemq.Client) -> int:
    [lag] = [info.lag for info in client.subscriptions("orders") if info.subscriber == "cooks"]
    return lag


def test_workers_get_everything_that_is_not_lost(folder: Path) -> None:
    lost = lost_offsets(folder)
    found: set[int] = set()
    until_s = time.monotonic() + DEADLINE_S
    with connected(folder) as client, client.shared_subscription("orders", "cooks") as cooks:
        while len(found) < MESSAGES - len(lost) and time.monotonic() < until_s:
            try:
                tasks = cooks.take_many(10, 0)
            except errors.RecordCorrupt:
                continue
            for task in tasks:
                found.add(int(task.message.text.split()[0]))
                task.ack()
        cooks.flush()
        assert lag_of(client) == len(lost)
        client.seek("orders", "cooks", "new")
        assert lag_of(client) == 0
    assert found == set(range(MESSAGES)) - lost


def test_a_reader_continues_after_lost_messages(folder: Path) -> None:
    lost = lost_offsets(folder)
    with connected(folder) as client:
        found: list[int] = []
        with pytest.raises(errors.RecordCorrupt, match=f"offsets {min(lost)} to .* The next offset is"):
            found.extend(message.offset for message in client.read("orders", min(lost)))
        found.extend(message.offset for message in client.read("orders", max(lost) + 1))
        assert found == list(range(max(lost) + 1, MESSAGES))


def test_a_pattern_consumer_gets_the_other_topics(folder: Path) -> None:
    lost = lost_offsets(folder)
    found = []
    with connected(folder) as client, client.subscribe_pattern("#", "pattern") as pattern:
        with pytest.raises(errors.RecordCorrupt, match="topic 'orders': offsets"):
            while True:
                message = pattern.get(0)
                assert message is not None
                found.append(message.text)
        assert "here" in found
        assert len(found) == min(lost) + 1
        client.put("other", "goes on")
        message = pattern.get(5)
        assert message is not None
        assert message.text == "goes on"


def test_a_folder_is_good_again_when_nobody_needs_the_lost_messages(folder: Path) -> None:
    with connected(folder) as client:
        for subscriber in ("kitchen", "cooks"):
            client.seek("orders", subscriber, "new")
        client.seek("#", "pattern", "new")
        client.put("orders", "goes on")
        assert [message.text for message in client.read("orders")] == ["goes on"]
    assert check(OsDisk(folder, read_only=True)).is_good
    with connected(folder) as client:
        assert not client.health().counters.get("extents_missing")
