"""Forked processes: exit codes, signals, readiness, and the end of their parent."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from oncemq.tools.faults.processes import RAISED, ForkedProcess, ForkedServer, StopRequest
from tests.acceptance.processes import DEADLINE_S, wait_until


def _sleep() -> int:
    time.sleep(60)
    return 0


def test_a_process_exits_with_the_result_of_its_body(tmp_path: Path) -> None:
    assert ForkedProcess(lambda: 5, tmp_path / "log").wait(DEADLINE_S) == 5


def test_an_exception_is_an_exit_code_and_a_line_in_the_log(tmp_path: Path) -> None:
    def body() -> int:
        raise ValueError("a reason")

    assert ForkedProcess(body, tmp_path / "log").wait(DEADLINE_S) == RAISED
    assert "a reason" in (tmp_path / "log").read_text()


def test_sigterm_waits_until_the_process_can_handle_it(tmp_path: Path) -> None:
    def body() -> int:
        time.sleep(0.2)
        stop = StopRequest()
        return 0 if stop.is_set else 1

    process = ForkedProcess(body, tmp_path / "log")
    process.terminate()
    assert process.wait(DEADLINE_S) == 0


def test_kill_returns_how_the_process_really_ended(tmp_path: Path) -> None:
    assert ForkedProcess(_sleep, tmp_path / "log").kill() == -signal.SIGKILL
    ended = ForkedProcess(lambda: 0, tmp_path / "log")
    ended.wait(DEADLINE_S)
    assert ended.kill() == 0


def test_a_server_reports_that_it_is_ready(tmp_path: Path) -> None:
    def body(report_ready: object) -> int:
        assert callable(report_ready)
        report_ready()
        time.sleep(60)
        return 0

    server = ForkedServer(body, tmp_path / "log")
    assert server.wait_ready(DEADLINE_S)
    server.terminate()
    assert server.wait(DEADLINE_S) == -signal.SIGTERM
    assert not ForkedServer(lambda _: 1, tmp_path / "log").wait_ready(DEADLINE_S)


def test_a_process_dies_with_its_parent(tmp_path: Path) -> None:
    def parent() -> int:
        child = ForkedProcess(_sleep, tmp_path / "log")
        (tmp_path / "pid.tmp").write_text(str(child.pid))
        (tmp_path / "pid.tmp").rename(tmp_path / "pid")
        time.sleep(60)
        return 0

    process = ForkedProcess(parent, tmp_path / "log")
    wait_until((tmp_path / "pid").exists, "the child has started")
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 0)
    process.kill()
    wait_until(lambda: not _is_alive(pid), "the child is dead")


def _is_alive(pid: int) -> bool:
    """A zombie is dead: the process that inherits it may not wait for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
