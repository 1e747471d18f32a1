"""One-shot commands that are interrupted are finished by the next run, once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oncemq.cli.messages.command_state import folder_name
from oncemq.config.settings import ClientSettings
from tests.cli.shell import TIMEOUT_S, Shell
from tests.forking import ForkedBroker

_TOKEN = "omq_k3v9x2aa_" + "s" * 43

#: A run that dies in the moment after something was written to its state. The hold of a get that died ends soon.
_DIES = """
import os, runpy, signal, sys
import oncemq.cli.messages.get
from oncemq.client.outbox.file import OutboxFile
oncemq.cli.messages.get._HOLD_MS = 1000
append, wanted = OutboxFile.append, sys.argv[1]
def dying(self, entries):
    numbers = append(self, entries)
    if any(type(operation).__name__ == wanted for operation, _ in entries):
        os.kill(os.getpid(), signal.SIGKILL)
    return numbers
OutboxFile.append = dying
sys.argv = ["oncemq", *sys.argv[2:]]
runpy.run_module("oncemq", run_name="__main__")
"""


@pytest.fixture
def state(shell: Shell, tmp_path: Path) -> Path:
    shell.environment["XDG_STATE_HOME"] = str(tmp_path / "state")
    return tmp_path / "state" / "oncemq"


def cut_off(shell: Shell, operation: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DIES, operation, *arguments],
        capture_output=True,
        env=shell.environment,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def end_offset(shell: Shell) -> int:
    return next(int(topic["end_offset"]) for topic in shell.objects("topics") if topic["name"] == shell.topic)


def test_an_interrupted_put_is_stored_once_by_the_next_run(shell: Shell, state: Path) -> None:
    shell.ok("sub", shell.topic, "kitchen")
    cut_off(shell, "Put", "put", shell.topic, "one")
    assert end_offset(shell) == 0
    done = shell.run("put", shell.topic, "two")
    assert b"Finishing an earlier run" in done.stderr
    shell.ok("put", shell.topic, "three")
    assert shell.ok("get", shell.topic, "kitchen", "--count", "9").split() == [b"one", b"two", b"three"]


def test_an_interrupted_sub_and_unsub_are_finished(shell: Shell, state: Path) -> None:
    cut_off(shell, "Subscribe", "sub", shell.topic, "kitchen")
    shell.ok("put", shell.topic, "one")
    assert shell.ok("get", shell.topic, "kitchen") == b"one\n"
    shell.ok("sub", shell.topic, "bar")
    cut_off(shell, "Unsubscribe", "unsub", shell.topic, "bar")
    shell.ok("put", shell.topic, "two")
    assert [entry["subscriber"] for entry in shell.objects("subs", shell.topic)] == ["kitchen"]


def test_a_get_that_was_interrupted_while_it_acked_does_not_print_again(shell: Shell, state: Path) -> None:
    shell.ok("sub", shell.topic, "kitchen")
    for text in ("one", "two"):
        shell.ok("put", shell.topic, text)
    cut_off(shell, "Transact", "get", shell.topic, "kitchen")
    assert shell.ok("get", shell.topic, "kitchen") == b"two\n"
    assert shell.subscription()["acked"] == 2


def test_concurrent_runs_have_slots_of_their_own_and_leave_nothing_behind(shell: Shell, state: Path) -> None:
    shell.ok("sub", shell.topic, "kitchen")
    runs = [shell.start("put", shell.topic, str(number)) for number in range(6)]
    assert [run.wait(TIMEOUT_S) for run in runs] == [0] * 6
    cut_off(shell, "Put", "put", shell.topic, "6")
    shell.ok("put", shell.topic, "7")
    got = shell.ok("get", shell.topic, "kitchen", "--count", "20").split()
    assert sorted(got) == [b"%d" % number for number in range(8)]


def test_a_refusal_after_the_end_of_a_run_is_reported_by_the_next(shell: Shell, state: Path) -> None:
    cut_off(shell, "Put", "put", "there is no such topic", "one")
    done = shell.run("sub", shell.topic, "kitchen")
    assert done.returncode == 0
    assert b"An earlier run was refused" in done.stderr
    assert b"refused" not in shell.run("sub", shell.topic, "kitchen").stderr


def test_a_put_that_no_broker_answered_is_not_kept_and_says_so(shell: Shell, state: Path) -> None:
    nowhere = ("--url", "tcp://127.0.0.1:9", "--timeout", "0.05", "--tries", "1")
    done = shell.run("put", shell.topic, "one", *nowhere)
    assert done.returncode == 6
    assert b"put the message again: it was neither stored nor kept" in done.stderr
    assert b"Finishing" not in shell.run("put", shell.topic, "two", *nowhere).stderr


def test_nothing_is_kept_with_state_none(shell: Shell, state: Path, tmp_path: Path) -> None:
    shell.ok("sub", shell.topic, "kitchen", "--state", "none")
    assert not state.exists()
    for text in ("one", "two"):
        shell.ok("put", shell.topic, text, "--state", str(tmp_path / "elsewhere"))
    assert not state.exists()
    assert list((tmp_path / "elsewhere").rglob("*.outbox"))


def outbox_sessions(shell: Shell) -> list[str]:
    return [session["name"] for session in shell.objects("sessions") if session["name"].startswith("outbox-")]


def test_a_run_in_a_new_container_leaves_no_session_behind(shell: Shell, tmp_path: Path) -> None:
    before = outbox_sessions(shell)
    for machine in range(2):
        shell.ok("sub", shell.topic, "kitchen", "--state", str(tmp_path / f"{machine}"))
        shell.ok("put", shell.topic, str(machine), "--state", str(tmp_path / f"{machine} again"))
        shell.ok("get", shell.topic, "kitchen", "--state", str(tmp_path / f"{machine} got"))
    assert outbox_sessions(shell) == before
    assert not list(tmp_path.rglob("*.outbox"))


def test_a_new_broker_is_accepted_when_nothing_is_pending(shell: Shell, state: Path) -> None:
    for _ in range(2):
        shell.ok("sub", shell.topic, "kitchen")
    [slot] = state.rglob("*.outbox")
    for session in shell.objects("sessions"):
        if session["name"].startswith("outbox-"):
            shell.ok("sessions", "rm", session["name"], "--yes")
    shell.ok("put", shell.topic, "one")
    assert shell.ok("get", shell.topic, "kitchen") == b"one\n"
    assert slot.exists()


def test_operations_for_another_broker_are_kept_and_reported(shell: Shell, state: Path, tmp_path: Path) -> None:
    first = ForkedBroker(tmp_path / "first")
    first.start()
    cut_off(shell, "Subscribe", "sub", shell.topic, "kitchen", "--url", first.url)
    first.kill()
    second = ForkedBroker(tmp_path / "second")
    second.url = first.url
    try:
        second.start()
        for command in (("sub", shell.topic, "bar"), ("put", shell.topic, "one"), ("get", shell.topic, "bar")):
            done = shell.run(*command, "--url", second.url)
            assert done.returncode == 0, done.stderr
            assert b"1 operation of an earlier run can't be finished here" in done.stderr
        assert done.stdout == b"one\n"
    finally:
        second.kill()
    [slot] = [path for path in state.rglob("*.outbox") if path.name == "slot-0.outbox"]
    assert slot.exists()


def test_a_put_that_has_to_wait_does_not_block_a_get_that_frees_space(shell: Shell, state: Path) -> None:
    shell.ok("topics", "create", shell.topic, "--quota", "2KiB")
    shell.ok("sub", shell.topic, "kitchen")
    for number in range(2):
        shell.ok("put", shell.topic, str(number) * 900)
    impatient = ("--timeout", "0.2", "--tries", "2")
    full = shell.run("put", shell.topic, "2" * 900, *impatient)
    assert full.returncode == 8
    assert b"is kept" in full.stderr
    got = shell.ok("get", shell.topic, "kitchen", "--count", "2", *impatient)
    assert [line[:1] for line in got.split()] == [b"0", b"1"]
    shell.ok("sub", shell.topic, "kitchen")
    assert shell.ok("get", shell.topic, "kitchen")[:1] == b"2"


def test_the_state_is_separate_for_each_user(tmp_path: Path) -> None:
    """Sessions belong to users: nobody can finish what another one has begun."""
    users = [
        ClientSettings(),
        ClientSettings(context="alice", token=_TOKEN),
        ClientSettings(context="bob", token=_TOKEN),
        ClientSettings(token_file=str(tmp_path / "token")),
        ClientSettings(token=_TOKEN),
        ClientSettings(curve_public="k" * 40),
    ]
    assert len({folder_name(user) for user in users}) == len(users)
    # A context without credentials is only another name for the address.
    assert folder_name(ClientSettings(context="local")) == folder_name(ClientSettings())
    replaced = _TOKEN.replace("s", "t")
    assert folder_name(ClientSettings(context="alice", token=replaced)) == folder_name(users[1])
    assert all(_TOKEN[13:] not in folder_name(user) for user in users)
