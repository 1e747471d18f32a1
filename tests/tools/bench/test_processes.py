from __future__ import annotations

import os
import subprocess
import sys

import pytest

from oncemq.protocol.errors import SettingInvalid
from oncemq.tools.bench import processes

#: A process with a thread, and a child that has used CPU time when the first line arrives.
_PARENT = """
import subprocess, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
child = "import time, sys\\nwhile time.process_time() < 0.2: pass\\nprint('ready', flush=True)\\nsys.stdin.read()"
subprocess.run([sys.executable, "-c", child], stdin=sys.stdin)
"""


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_the_cpu_time_of_a_server_includes_its_children() -> None:
    with _start() as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert len(processes.tree(server.pid)) == 2
        assert processes.cpu_s(server.pid) >= 0.2
        assert processes.resident_mb(server.pid) > 1
        server.communicate(b"")


def test_a_server_is_pinned_with_its_children_and_threads() -> None:
    cpu = min(os.sched_getaffinity(0))
    with _start() as server:
        assert server.stdout is not None
        server.stdout.readline()
        processes.pin(server.pid, {cpu})
        for each in processes.tree(server.pid):
            for thread in os.listdir(f"/proc/{each}/task"):
                assert os.sched_getaffinity(int(thread)) == {cpu}
        server.communicate(b"")


def test_a_block_that_was_pinned_leaves_the_process_as_it_was() -> None:
    before = os.sched_getaffinity(0)
    with processes.pinned_here({min(before)}):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def test_servers_and_clients_do_not_share_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 3, 4})
    assert processes.server_and_client_cpus() == ({3}, {4})


def test_pinning_on_one_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with pytest.raises(SettingInvalid, match="two CPUs"):
        processes.server_and_client_cpus()
