"""A broker on a real disk that fills up: a small ext4 file system in a file.

Puts are refused with a typed error but acks still work, nothing is lost by a restart, and puts resume automatically
once the consumers have caught up.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncemq
from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.processes import DEADLINE_S, SMALL

DISK_BYTES = 24 * 2**20
VALUE_BYTES = 20_000


def _run(*command: str) -> str:
    """Run a command. Returns an empty text if it succeeded, otherwise its error."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed"
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return "" if ended.returncode == 0 else f"{command[0]}: {ended.stderr.strip() or ended.returncode}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system takes root")
    image, folder = tmp_path / "disk.img", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    problem = _run("mkfs.ext4", "-q", "-m", "0", str(image)) or _run("mount", "-o", "loop", str(image), str(folder))
    if problem:
        pytest.skip(f"no loop file system here: {problem}")
    yield folder
    _run("umount", "--lazy", str(folder))


@pytest.fixture
def broker(small_disk: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(small_disk / "data", *SMALL)
    process.log_path = small_disk.parent / "broker.log"
    yield process
    process.kill()


def _value(number: int) -> bytes:
    return b"%d:" % number + b"x" * VALUE_BYTES


def _fill(broker: BrokerProcess) -> int:
    """Put until the disk is full; returns how many were acknowledged."""
    with broker.connect(timeout_s=0.5, tries=3) as client:
        for number in range(2 * DISK_BYTES // VALUE_BYTES):
            try:
                client.put("orders", _value(number))
            except oncemq.DiskFull:
                return number
    raise AssertionError("the disk did not fill up")


def test_a_full_disk_refuses_puts_accepts_acks_and_resumes_when_there_is_space(broker: BrokerProcess) -> None:
    broker.start()
    with broker.connect() as producer, broker.connect() as consumer:
        consumer.subscribe("orders", "kitchen")
        stored = _fill(broker)
        assert stored * VALUE_BYTES > DISK_BYTES // 4
        broker.restart()
        waiting = producer.put_nowait("orders", _value(stored))
        subscription = consumer.subscription("orders", "kitchen", auto_ack=False)
        first = subscription.get_many(5, timeout_s=DEADLINE_S)
        subscription.ack(first[-1], wait=True)
        broker.restart()
        _catch_up(subscription, stored, first)
        # The client has kept the put and retried it; there is space now.
        assert waiting.result(timeout_s=DEADLINE_S).offset == stored
        end = _fill_again(producer, stored + 1)
        values = [message.value for message in subscription.messages(timeout_s=0)]
        assert values == [_value(number) for number in range(stored, end)]


def _catch_up(subscription: oncemq.Subscription, stored: int, first: list[oncemq.Message]) -> None:
    """Take, compare and ack everything that was stored before the disk was full."""
    values = [message.value for message in first]
    while len(values) < stored:
        # A few at a time: the pending put may be stored as soon as the acks have freed space.
        messages = subscription.get_many(min(50, stored - len(values)), timeout_s=DEADLINE_S)
        assert messages, "an acknowledged message is missing"
        values += [message.value for message in messages]
        subscription.ack(messages[-1], wait=True)
    assert values == [_value(number) for number in range(stored)]


def _fill_again(client: oncemq.Client, start: int) -> int:
    """Put as much as a quarter of the disk: space must really have been freed."""
    end = start + DISK_BYTES // 4 // VALUE_BYTES
    for number in range(start, end):
        client.put("orders", _value(number))
    return end
