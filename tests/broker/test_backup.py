"""Copies of a broker's folder, made as described in docs/howto/operate.md, hold everything that was acknowledged."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from oncemq.cli.main import cli
from oncemq.disk.os_disk import OsDisk
from oncemq.journal.files.journal import FileJournal
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess
from tests.forking import ForkedBroker
from tests.journal.rig import write

GUIDE = Path(__file__).parents[2] / "docs/howto/operate.md"
DEADLINE_S = 60
COPIES = 3
#: Small, so that segments begin, are released and used again, and snapshots are written, while copies are made.
SIZES = ("--segment-bytes", "1MiB", "--snapshot-bytes", "1MiB", "--batch-bytes-max", "256KiB")
SEGMENT_BYTES = 64 * 1024


class Producer(threading.Thread):
    """Puts numbers, and counts those that are acknowledged."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__()
        self._broker = broker
        self._ended = threading.Event()
        self.acknowledged = 0

    def run(self) -> None:
        with self._broker.connect(tries=60) as client:
            while not self._ended.is_set():
                first = self.acknowledged
                client.put_many("numbers", [f"{number:01000}" for number in range(first, first + 50)])
                self.acknowledged = first + 50

    def end(self) -> None:
        self._ended.set()
        self.join()


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.002)


def commands() -> str:
    """Copy a running broker as the guide does."""
    [block] = [block for block in re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "kill -STOP" in block]
    return str(block).replace("oncemq journal check oncemq-copy\n", "")


def numbers_in(folder: Path) -> list[int]:
    """Return the messages of a broker that serves the copy."""
    checked = CliRunner().invoke(cli, ["journal", "check", str(folder)])
    assert checked.exit_code == 0, checked.output
    with ForkedBroker(folder, *SIZES) as broker, broker.connect() as client:
        return [int(message.text) for message in client.read("numbers")]


def test_a_copy_of_a_suspended_broker_has_everything_that_was_acknowledged_before(tmp_path: Path) -> None:
    copies: list[tuple[Path, int]] = []
    with ForkedBroker(tmp_path / "oncemq-data", *SIZES) as broker:
        with broker.connect() as client:
            client.create_topic("numbers", retain_bytes=2 * 2**20)
        producer = Producer(broker)
        producer.start()
        try:
            for count in range(1, COPIES + 1):
                wait_until(lambda wanted=count: producer.acknowledged >= 3_000 * wanted)  # type: ignore[misc]
                acknowledged = producer.acknowledged
                subprocess.run(["bash", "-c", commands()], cwd=tmp_path, check=True)
                copies.append(((tmp_path / "oncemq-copy").rename(tmp_path / f"copy-{count}"), acknowledged))
        finally:
            producer.end()
    for copy, acknowledged in copies:
        found = numbers_in(copy)
        assert found == list(range(found[0], found[-1] + 1))
        assert found[-1] >= acknowledged - 1


def test_a_copy_that_was_read_while_groups_were_written_has_a_gap_and_is_refused(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    journal = open_journal(source)
    list(journal.load().groups)
    write(journal, [b"before"])
    segment = source / "segments/000000000001"
    first_half = segment.read_bytes()[: SEGMENT_BYTES // 2]
    for _ in range(6):
        write(journal, [b"x" * 8000])
    second_half = segment.read_bytes()[SEGMENT_BYTES // 2 :]
    shutil.copytree(source, copy)
    (copy / "segments/000000000001").write_bytes(first_half + second_half)
    with pytest.raises(errors.JournalCorrupt):
        list(open_journal(copy).load().groups)
    journal.close()


def open_journal(folder: Path) -> FileJournal:
    return FileJournal(OsDisk(folder), InlineWorker(), segment_bytes=SEGMENT_BYTES)
