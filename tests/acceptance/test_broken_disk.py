"""A broker whose system calls fail: strace injects the errors into a real process.

In every case the broker stops without acknowledging what is not on disk, and after the next start everything that was
acknowledged is there once.
"""

from __future__ import annotations

import functools
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import oncemq
from oncemq.protocol.errors import JournalFailed
from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.processes import DEADLINE_S, SMALL, wait_until

PUTS_MAX = 2_000
OLD = ["old 0", "old 1", "old 2"]


@functools.cache
def _strace_problem() -> str:
    """Return why strace can't be used here, or an empty text."""
    strace = shutil.which("strace")
    if strace is None:
        return "strace is not installed"
    command = [strace, "-f", "-qq", "-o", "/dev/null", "-e", "inject=fdatasync:error=EIO:when=99", "true"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return f"strace can't trace here: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a topic, a subscription and a few messages, of a broker that was killed."""
    if _strace_problem():
        pytest.skip(_strace_problem())
    process = BrokerProcess(tmp_path_factory.mktemp("prepared") / "data", *SMALL)
    process.start()
    try:
        with process.connect() as client:
            client.subscribe("orders", "kitchen")
            client.put_many("orders", OLD)
    finally:
        process.kill()
    return process.folder


def _start_broken(broker: BrokerProcess, prepared: Path, injection: str) -> None:
    shutil.copytree(prepared, broker.folder)
    call = injection.partition(":")[0]
    strace = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={injection}")
    broker.start(strace, wait=False)


def _put_until_it_ends(broker: BrokerProcess, client: oncemq.Client) -> tuple[list[str], oncemq.Handle]:
    """Return what was acknowledged, and the put after it, which was not answered when the broker ended."""
    for number in range(PUTS_MAX):
        handle = client.put_nowait("orders", f"new {number}")
        wait_until(lambda handle=handle: handle.done() or not broker.is_running(), "an answer, or the broker's end")  # type: ignore[misc]
        if not handle.done():
            return [f"new {acknowledged}" for acknowledged in range(number)], handle
        handle.result()
    raise AssertionError("nothing broke")


def _delivered(client: oncemq.Client) -> list[str]:
    with client.subscription("orders", "kitchen") as subscription:
        return [message.text for message in subscription.messages(timeout_s=0)]


@pytest.mark.parametrize(
    ("injection", "exit_code"),
    [
        ("fdatasync:error=EIO:when=5", JournalFailed.exit_code),
        ("fdatasync:error=EIO:when=60", JournalFailed.exit_code),
        ("pwrite64:error=EIO:when=20", JournalFailed.exit_code),
        ("pwrite64:error=ENOSPC:when=33", JournalFailed.exit_code),
        ("fdatasync:signal=SIGKILL:when=25", -signal.SIGKILL),
        ("pwrite64:signal=SIGKILL:when=40", -signal.SIGKILL),
    ],
)
def test_a_broker_whose_disk_breaks_stops_and_keeps_what_it_acknowledged(
    broker_process: BrokerProcess, prepared: Path, injection: str, exit_code: int
) -> None:
    _start_broken(broker_process, prepared, injection)
    with broker_process.connect(timeout_s=0.25, tries=240) as client:
        acknowledged, unanswered = _put_until_it_ends(broker_process, client)
        assert broker_process.wait() == exit_code, broker_process.log_tail()
        broker_process.start()
        # The client continues automatically, and the unanswered put is stored once.
        assert unanswered.result(timeout_s=DEADLINE_S).offset == len(OLD) + len(acknowledged)
        assert _delivered(client) == [*OLD, *acknowledged, f"new {len(acknowledged)}"]


@pytest.mark.parametrize("injection", ["fdatasync:error=EIO:when=1", "pread64:error=EIO:when=3+"])
def test_a_disk_that_breaks_while_a_broker_starts_keeps_it_from_starting_and_harms_nothing(
    broker_process: BrokerProcess, prepared: Path, injection: str
) -> None:
    _start_broken(broker_process, prepared, injection)
    assert broker_process.wait() == JournalFailed.exit_code, broker_process.log_tail()
    broker_process.start()
    with broker_process.connect() as client:
        assert _delivered(client) == OLD
