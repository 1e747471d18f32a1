"""The command line against a real broker, each command a process of its own as in a shell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import oncemq
from oncemq.testing.broker_process import BrokerProcess, free_url
from tests.acceptance.processes import SMALL
from tests.cli.shell import TIMEOUT_S, Shell
from tests.forking import Forked, ForkedBroker


def test_a_message_is_put_and_got(shell: Shell) -> None:
    assert shell.ok("sub", shell.topic, "alice") == f"Subscribed alice to {shell.topic}.\n".encode()
    assert b"is already subscribed" in shell.ok("sub", shell.topic, "alice")
    stored = shell.ok("put", shell.topic, "one pizza")
    assert stored == f"Stored 1 message in {shell.topic} at offset 0, for 1 subscription.\n".encode()
    assert shell.ok("get", shell.topic, "alice") == b"one pizza\n"


def test_no_new_messages_is_exit_code_3(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    done = shell.run("get", shell.topic, "alice")
    assert (done.returncode, done.stdout) == (3, b"")
    assert b"no new messages" in done.stderr
    done = shell.run("get", shell.topic, "alice", "--wait", "0.2", "--json")
    assert (done.returncode, done.stdout) == (3, b"")
    assert json.loads(done.stderr)["code"] == "NOTHING_NEW"


def test_an_unknown_topic_or_subscription_is_exit_code_5(shell: Shell) -> None:
    assert shell.run("put", shell.topic, "x").returncode == 5
    assert shell.run("get", shell.topic, "alice").returncode == 5
    assert shell.run("unsub", shell.topic, "alice").returncode == 5
    shell.ok("topics", "create", shell.topic)
    assert shell.run("get", shell.topic, "alice").returncode == 5


def test_an_invalid_name_is_refused(shell: Shell) -> None:
    assert shell.run("sub", "a\tb", "alice").returncode == 4


def test_a_broker_that_does_not_answer_is_exit_code_6(shell: Shell) -> None:
    shell.environment["ONCEMQ_URL"] = free_url()
    done = shell.run("health", "--tries", "1", "--timeout", "0.2")
    assert done.returncode == 6
    assert b"oncemq serve" in done.stderr


def test_a_put_without_subscriptions_is_stored_with_a_warning(shell: Shell) -> None:
    done = shell.run("put", shell.topic, "x", "--create", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["subscriptions"] == 0
    assert f"Not kept: '{shell.topic}' has no subscription and no retention".encode() in done.stderr
    assert shell.run("put", shell.topic, "x", "--delay", "1h").stderr == b""
    shell.ok("topics", "create", shell.topic, "--retain", "1d", "--alter")
    for text in ("x", "-"):
        assert shell.run("put", shell.topic, text, stdin=b"x\n").stderr == b""


def test_lines_that_fit_a_small_quota_individually_are_not_batched(shell: Shell) -> None:
    shell.ok("topics", "create", shell.topic, "--quota", "1KiB", "--overflow", "drop")
    shell.ok("sub", shell.topic, "kitchen")
    lines = [b"%d" % number * 300 for number in range(10)]
    shell.ok("put", shell.topic, "--key", "k", stdin=b"\n".join([*lines, *[b""] * 500]))
    assert shell.subscription()["end_offset"] == 509
    done = shell.run("put", shell.topic, "x" * 1024)
    assert (done.returncode, b"--quota SIZE --alter" in done.stderr) == (4, True)


def test_lines_of_standard_input_are_messages(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    summary = json.loads(shell.ok("put", shell.topic, "--json", stdin=b"first\n\n\xff\r\nlast"))
    assert (summary["messages"], summary["first_offset"], summary["last_offset"]) == (4, 0, 3)
    assert shell.ok("get", shell.topic, "alice", "--count", "9", "--null") == b"first\0\0\xff\r\0last\0"


def test_messages_may_end_with_nul(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    shell.ok("put", shell.topic, "--null", stdin=b"two\nlines\0and more")
    assert shell.ok("get", shell.topic, "alice", "--count", "9", "--null") == b"two\nlines\0and more\0"


def test_empty_input_puts_nothing(shell: Shell) -> None:
    done = shell.run("put", shell.topic)
    assert (done.returncode, done.stdout) == (0, b"")
    assert json.loads(shell.ok("put", shell.topic, "-", "--json")) == {"topic": shell.topic, "messages": 0}


def test_a_line_that_is_too_large_is_named_and_nothing_after_it_is_stored(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    done = shell.run("put", shell.topic, "-", stdin=b"small\n" + b"x" * (17 << 20) + b"\nbehind\n")
    assert done.returncode == 4
    errors = [line for line in done.stderr.splitlines() if b"error: " in line]
    assert len(errors) == 1
    assert b"line 2 has" in errors[0]
    assert b"--batch-bytes-max" in errors[0]
    assert b"1 message confirmed as stored" in done.stderr
    assert shell.ok("get", shell.topic, "alice", "--count", "9") == b"small\n"


def test_key_and_headers_arrive(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    shell.ok("put", shell.topic, "x", "--key", "k", "--header", "a=1", "--header", "b=2=3")
    entry = json.loads(shell.ok("get", shell.topic, "alice", "--json"))
    assert (entry["value"], entry["key"], entry["headers"]) == ("x", "k", {"a": "1", "b": "2=3"})


def test_successive_gets_print_every_message_once(shell: Shell) -> None:
    """There are several batches, and the counts end in the middle of them."""
    shell.ok("sub", shell.topic, "alice")
    shell.ok("put", shell.topic, "x")
    shell.put_numbers(5000)
    printed = b"".join(shell.ok("get", shell.topic, "alice", "--count", size) for size in ("1", "777", "1234", "9999"))
    assert printed == b"x\n" + b"".join(b"%d\n" % n for n in range(5000))
    assert shell.subscription()["lag"] == 0


def test_no_ack_does_not_move_the_position(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    shell.put_numbers(3)
    assert shell.ok("get", shell.topic, "alice", "--count", "2", "--no-ack") == b"0\n1\n"
    assert shell.ok("get", shell.topic, "alice", "--count", "9", "--no-ack") == b"0\n1\n2\n"
    assert shell.ok("get", shell.topic, "alice") == b"0\n"


def test_get_waits_for_a_message(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    waiting = shell.start("get", shell.topic, "alice", "--wait", "60")
    shell.ok("put", shell.topic, "late")
    assert waiting.communicate(timeout=TIMEOUT_S) == (b"late\n", b"")
    assert waiting.returncode == 0


def test_what_the_reader_did_not_read_is_not_acked(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    shell.put_numbers(1000)
    getting = shell.start("get", shell.topic, "alice", "--count", "1000")
    assert getting.stdout is not None
    assert getting.stderr is not None
    assert os.read(getting.stdout.fileno(), 4) == b"0\n1\n"
    getting.stdout.close()
    assert getting.wait(TIMEOUT_S) == 141
    assert getting.stderr.read() == b""
    assert shell.subscription()["acked"] == 2
    assert shell.ok("get", shell.topic, "alice") == b"2\n"


def test_head_ends_a_tail_silently(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    shell.put_numbers(50_000)
    script = f"{sys.executable} -m oncemq tail '{shell.topic}' --no-follow | head -n 1"
    done = subprocess.run(script, shell=True, capture_output=True, env=shell.environment, timeout=TIMEOUT_S)
    assert (done.stdout, done.stderr) == (b"0\n", b"")


def test_an_interrupted_get_is_130_and_acks_nothing(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    waiting = shell.start("get", shell.topic, "alice", "--wait", "60")
    # It has started when the broker knows a new owner.
    deadline_s = time.monotonic() + TIMEOUT_S
    while shell.subscription()["epoch"] == 0:
        assert time.monotonic() < deadline_s
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=TIMEOUT_S) == (b"", b"")
    assert waiting.returncode == 130
    assert shell.subscription()["acked"] == 0


def test_a_terminated_get_releases_the_subscription(shell: Shell) -> None:
    """A hold that is not released would make the next get wait, or fail with BUSY."""
    shell.ok("sub", shell.topic, "alice")
    waiting = shell.start("get", shell.topic, "alice", "--wait", "60")
    deadline_s = time.monotonic() + TIMEOUT_S
    while shell.subscription()["epoch"] == 0:
        assert time.monotonic() < deadline_s
    waiting.send_signal(signal.SIGTERM)
    assert waiting.communicate(timeout=TIMEOUT_S) == (b"", b"")
    assert waiting.returncode == 143
    with oncemq.connect(shell.environment["ONCEMQ_URL"]) as client:
        client.subscription(shell.topic, "alice", hold_ms=1000).close()


def test_a_get_without_ack_waits_for_a_message_too(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    waiting = shell.start("get", shell.topic, "alice", "--wait", "60", "--no-ack")
    shell.ok("put", shell.topic, "late")
    assert waiting.communicate(timeout=TIMEOUT_S) == (b"late\n", b"")
    assert shell.subscription()["acked"] == 0


def test_an_interrupted_tail_is_130(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    shell.put_numbers(1)
    tailing = shell.start("tail", shell.topic, "--from", "earliest")
    assert tailing.stdout is not None
    assert tailing.stdout.readline() == b"0\n"
    tailing.send_signal(signal.SIGINT)
    assert tailing.communicate(timeout=TIMEOUT_S) == (b"", b"")
    assert tailing.returncode == 130


def ends_of(processes: list[Forked]) -> list[tuple[int, bytes]]:
    """Return exit codes and outputs, read concurrently: a get waits for its reader, and the next get for it."""
    with ThreadPoolExecutor(len(processes)) as readers:
        outputs = [out for out, _ in readers.map(Forked.communicate, processes)]
    return [(process.wait(), out) for process, out in zip(processes, outputs, strict=True)]


def test_parallel_puts_and_gets_neither_lose_nor_duplicate(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    puts = [shell.start("put", shell.topic, f"m {n}", "--as", "importer") for n in range(8)]
    assert [code for code, _ in ends_of(puts)] == [0] * 8
    gets = [shell.start("get", shell.topic, "alice") for _ in range(8)]
    assert sorted(ends_of(gets)) == [(0, b"m %d\n" % n) for n in range(8)]
    assert shell.run("get", shell.topic, "alice").returncode == 3


def test_tail_prints_without_acking(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    shell.put_numbers(5)
    assert shell.ok("tail", shell.topic, "--no-follow") == b"0\n1\n2\n3\n4\n"
    assert shell.ok("tail", shell.topic, "--from", "3", "--count", "1", "--format", "{offset}={value}") == b"3=3\n"
    assert shell.subscription()["acked"] == 0


def test_topics_are_created_listed_and_deleted(shell: Shell) -> None:
    assert json.loads(shell.ok("topics", "create", shell.topic, "--retain", "7d", "--json"))["created"] is True
    assert shell.ok("topics", "create", shell.topic, "--retain", "7d") == f"{shell.topic} already exists.\n".encode()
    listed = [json.loads(line) for line in shell.ok("topics", "--json").splitlines()]
    assert [topic["retain_ms"] for topic in listed if topic["name"] == shell.topic] == [7 * 86_400_000]
    shell.ok("topics", "rm", shell.topic, "--yes")
    assert shell.topic.encode() not in shell.ok("topics")


def test_a_subscription_is_deleted(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    shell.ok("sub", shell.topic, "bob")
    shell.put_numbers(3)
    assert shell.ok("unsub", shell.topic, "alice") == f"Unsubscribed alice from {shell.topic}.\n".encode()
    assert f"{shell.topic} is deleted, with 3 messages.".encode() in shell.ok("unsub", shell.topic, "bob")
    assert shell.run("subs", shell.topic).returncode == 5


def test_a_topic_of_a_subscriber_can_be_made_permanent(shell: Shell) -> None:
    shell.ok("sub", shell.topic, "alice")
    said = shell.ok("topics", "create", shell.topic, "--retain", "7d")
    assert said == f"{shell.topic} already exists; it is permanent now, and retains 7 d.\n".encode()
    assert shell.ok("unsub", shell.topic, "alice") == f"Unsubscribed alice from {shell.topic}.\n".encode()
    assert shell.topic.encode() in shell.ok("topics")


def test_sessions_are_listed_and_deleted(shell: Shell, broker: BrokerProcess) -> None:
    with broker.connect(name="billing"):
        pass
    assert b"billing" in shell.ok("sessions")
    shell.ok("sessions", "rm", "billing", "--yes")
    assert b"billing" not in shell.ok("sessions")


def test_health_shows_the_version(shell: Shell) -> None:
    assert json.loads(shell.ok("health", "--json"))["version"]
    assert b"running for" in shell.ok("health")


def test_serve_says_where_it_is_and_ends_with_0_on_sigterm(shell: Shell, tmp_path: Path) -> None:
    url = free_url()
    where = ("--listen", url, "--data", str(tmp_path / "data"), "--http", "none")
    serving = shell.start("serve", *where, "--log-format", "json")
    assert serving.stdout is not None
    lines = [serving.stdout.readline().decode() for _ in range(4)]
    assert url in lines[0]
    assert str(tmp_path / "data") in lines[0]
    assert [line.split()[1] for line in lines[1:]] == ["sub", "put", "get"]
    assert all(line.endswith(f"--url {url}\n") for line in lines[1:])
    serving.send_signal(signal.SIGTERM)
    _, log = serving.communicate(timeout=TIMEOUT_S)
    assert serving.returncode == 0
    assert all(json.loads(line)["level"] for line in log.splitlines())


def test_a_second_broker_on_the_same_folder_is_refused(shell: Shell, broker: BrokerProcess) -> None:
    done = shell.run("serve", "--listen", free_url(), "--data", str(broker.folder))
    assert done.returncode == 9
    assert b"error: " in done.stderr


def test_a_journal_is_checked_exported_and_cut(tmp_path: Path) -> None:
    broker = ForkedBroker(tmp_path / "data", *SMALL)
    broker.start()
    shell = Shell(broker.url)
    try:
        shell.ok("sub", shell.topic, "alice")
        shell.ok("put", shell.topic, "one pizza")
        assert shell.run("journal", "check", str(broker.folder)).returncode == 9
        assert shell.run("journal", "export", str(broker.folder), str(tmp_path / "out.jsonl")).returncode == 9
    finally:
        broker.kill()
    folder, out = str(broker.folder), str(tmp_path / "out.jsonl")
    report = json.loads(shell.ok("journal", "check", folder, "--json"))
    assert (report["records"], report["problems"]) == (1, [])
    assert b"No damage found" in shell.ok("journal", "check", folder)
    shell.ok("journal", "export", folder, out)
    assert Path(out).stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in Path(out).read_text(encoding="utf-8").splitlines()]
    assert [line["count"] for line in lines if line["kind"] == "record"] == [1]
    stored = [line for line in lines if line["kind"] == "group" and "Stored" in json.dumps(line["events"])]
    assert shell.run("journal", "export", folder, out).returncode == 2
    assert shell.run("journal", "cut", folder, str(stored[0]["position"]), stdin=b"n\n").returncode == 1
    assert json.loads(shell.ok("journal", "check", folder, "--json"))["records"] == 1
    assert json.loads(shell.ok("journal", "cut", folder, str(stored[0]["position"]), "--yes", "--json"))["groups"]
    assert json.loads(shell.ok("journal", "check", folder, "--json"))["records"] == 0
