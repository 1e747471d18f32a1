"""`oncemq listen` against a real broker."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.acceptance.processes import wait_until
from tests.cli.shell import TIMEOUT_S, Shell
from tests.forking import Forked, ForkedBroker


def line_of(process: Forked) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def end(process: Forked, number: int = signal.SIGTERM) -> tuple[int, bytes, bytes]:
    process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def listening(shell: Shell, *arguments: str) -> Forked:
    """Start a listener, and wait until it has printed the first messages."""
    shell.ok("sub", shell.topic, "alice")
    shell.ok("put", shell.topic, "begin")
    process = shell.start("listen", shell.topic, "alice", *arguments)
    assert line_of(process) == b"begin\n"
    return process


def test_messages_are_printed_as_they_arrive_and_acked(shell: Shell) -> None:
    process = listening(shell)
    for number in range(3):
        shell.ok("put", shell.topic, f"message {number}")
        assert line_of(process) == b"message %d\n" % number
    wait_until(lambda: shell.subscription()["lag"] == 0, "acks of what was printed, while it runs")
    assert end(process) == (143, b"", b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_listener_that_is_ended_has_acked_what_it_printed(shell: Shell, number: int, code: int) -> None:
    process = listening(shell)
    shell.ok("put", shell.topic, "last")
    assert line_of(process) == b"last\n"
    assert end(process, number) == (code, b"", b"")
    assert shell.run("get", shell.topic, "alice").returncode == 3


def test_an_interrupt_while_the_reader_is_slow_acks_what_it_has_read(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    shell.put_numbers(1000)
    process = shell.start("listen", shell.topic, "alice")
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 4) == b"0\n1\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == 130
    assert shell.subscription()["acked"] == 2


def test_what_the_reader_did_not_read_is_not_acked(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    shell.put_numbers(1000)
    process = shell.start("listen", shell.topic, "alice")
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 4) == b"0\n1\n"
    process.stdout.close()
    assert process.wait(TIMEOUT_S) == 141
    assert shell.subscription()["acked"] == 2


def test_a_listener_creates_the_subscription(shell: Shell) -> None:
    shell.ok("topics", "create", shell.topic, "--retain", "1d")
    shell.put_numbers(3)
    printed = shell.ok("listen", shell.topic, "alice", "--from", "earliest", "--wait", "0")
    assert printed == b"0\n1\n2\n"
    assert shell.subscription()["lag"] == 0
    shell.put_numbers(1)
    done = shell.run("listen", shell.topic, "alice", "--from", "earliest", "--count", "1")
    assert (done.returncode, done.stdout) == (0, b"0\n")
    assert b"continues at its position" in done.stderr
    assert shell.ok("listen", shell.topic, "bob", "--from", "-1h", "--wait", "0") == b"0\n1\n2\n0\n"


def test_a_count_is_exact_and_no_message_is_exit_code_3(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    shell.put_numbers(5)
    assert shell.ok("listen", shell.topic, "alice", "--count", "3") == b"0\n1\n2\n"
    assert shell.subscription()["acked"] == 3
    assert shell.ok("listen", shell.topic, "alice", "--count", "9", "--wait", "0") == b"3\n4\n"
    assert shell.run("listen", shell.topic, "alice", "--wait", "0").returncode == 3


def test_only_messages_with_a_header_are_printed_and_the_others_are_done(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    for region in ("eu", "us", "eu", "asia", "us"):
        shell.ok("put", shell.topic, region, "--header", f"region={region}")
    assert shell.ok("listen", shell.topic, "alice", "--header", "region=eu", "--count", "1") == b"eu\n"
    assert shell.subscription()["acked"] == 1
    wanted = ("--header", "region=eu", "--header", "region=asia")
    assert shell.ok("listen", shell.topic, "alice", *wanted, "--wait", "0") == b"eu\nasia\n"
    assert shell.subscription()["lag"] == 0


def test_a_pattern_includes_topics_that_are_created_later(shell: Shell) -> None:
    name = shell.topic
    shell.ok("topics", "create", f"{name}.eu")
    shell.ok("sub", f"{name}.*", "audit")
    shell.ok("put", f"{name}.eu", "one")
    process = shell.start("listen", f"{name}.*", "audit", "--format", "{topic}={value}")
    assert line_of(process) == f"{name}.eu=one\n".encode()
    shell.ok("put", f"{name}.us", "two", "--create")
    assert line_of(process) == f"{name}.us=two\n".encode()
    assert end(process)[0] == 143
    [entry] = [entry for entry in shell.objects("subs", f"{name}.*") if "topic" not in entry]
    assert (entry["topics"], entry["lag"]) == (2, 0)


def test_the_newest_listener_takes_over(shell: Shell) -> None:
    first = listening(shell)
    second = shell.start("listen", shell.topic, "alice")
    _, errors = first.communicate(timeout=TIMEOUT_S)
    assert first.returncode == 7
    assert b"another listen" in errors
    shell.ok("put", shell.topic, "x")
    assert line_of(second) == b"x\n"


def test_a_seek_moves_a_listener_that_runs(shell: Shell) -> None:
    shell.ok("topics", "create", shell.topic, "--retain", "1d")
    process = listening(shell)
    shell.ok("seek", shell.topic, "alice", "earliest")
    assert line_of(process) == b"begin\n"


def test_a_shared_subscription_is_for_workers(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "packers", "--shared")
    for command in ("listen", "get"):
        done = shell.run(command, shell.topic, "packers", "--json")
        assert done.returncode == 4
        assert "oncemq work" in json.loads(done.stderr)["advice"]


def test_a_listener_continues_when_the_broker_is_back(tmp_path: Path) -> None:
    broker = ForkedBroker(tmp_path / "data")
    broker.start()
    shell = Shell(broker.url)
    try:
        process = listening(shell)
        shell.ok("put", shell.topic, "before")
        assert line_of(process) == b"before\n"
        broker.kill()
        broker.start()
        shell.ok("put", shell.topic, "after")
        assert line_of(process) == b"after\n"
        assert end(process)[:2] == (143, b"")
        assert shell.subscription()["lag"] == 0
    finally:
        shell.end_all()
        broker.kill()
