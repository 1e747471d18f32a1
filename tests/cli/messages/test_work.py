"""`oncemq work` against a real broker: commands that succeed, fail, hang and outlive their worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from oncemq.cli.messages.message_command import environment_for
from oncemq.cli.support import options
from oncemq.protocol.commands import Put
from oncemq.protocol.message import Message
from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.processes import wait_until
from tests.cli.shell import COMMAND, TIMEOUT_S, Shell
from tests.client.test_undecodable import BAD, envelope, send
from tests.forking import Forked, ForkedBroker

#: Longer than any test: what comes before that was returned.
FOREVER = "1h"


class Works:
    """A shell whose commands leave traces in a folder."""

    def __init__(self, shell: Shell, folder: Path) -> None:
        self.shell = shell
        self.folder = folder
        self.topic = shell.topic

    def script(self, text: str) -> list[str]:
        """A command that runs in the folder."""
        return ["--", "sh", "-c", f"cd '{self.folder}'\n{text}"]

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def await_lines(self, name: str, count: int) -> list[str]:
        wait_until(lambda: len(self.lines(name)) >= count, f"{count} lines in {name}", TIMEOUT_S)
        return self.lines(name)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return self.shell.run("work", self.topic, "packers", *arguments)

    def start(self, *arguments: str) -> Forked:
        return self.shell.start("work", self.topic, "packers", *arguments)

    def share(self, *arguments: str) -> None:
        self.shell.ok("sub", self.topic, "packers", "--shared", *arguments)


@pytest.fixture
def works(shell: Shell, tmp_path: Path) -> Works:
    return Works(shell, tmp_path)


def summary_of(stderr: bytes) -> dict[str, int]:
    summary: dict[str, int] = json.loads(stderr.splitlines()[-1])
    return summary


def test_a_command_gets_the_message_and_its_fields(works: Works) -> None:
    works.share()
    works.shell.ok("put", works.topic, "one pizza", "--key", "table-7", "--header", "content-type=food")
    script = 'cat; echo " for $ONCEMQ_KEY, $ONCEMQ_TOPIC/$ONCEMQ_OFFSET, try $ONCEMQ_TRY, $ONCEMQ_HEADER_CONTENT_TYPE"'
    done = works.run("--count", "1", *works.script(script))
    assert done.returncode == 0
    assert done.stdout == f"one pizza for table-7, {works.topic}/0, try 1, food\n".encode()
    assert done.stderr == b"1 done, 0 failed.\n"
    assert works.shell.subscription()["lag"] == 0


def test_values_that_no_variable_can_hold_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMQ_KEY", "of another message")
    monkeypatch.setenv("ONCEMQ_HEADER_OLD", "of another message")
    headers = {"a": b"\xff", "b": b"x\0y", "c": b"z" * 1_000_000}
    environment = environment_for(Message("t", 7, b"", None, headers, 0, 31), 2)
    variables = {name: value for name, value in environment.items() if name.startswith("ONCEMQ_")}
    assert "ONCEMQ_KEY" not in variables
    assert [name for name in variables if name.startswith("ONCEMQ_HEADER_")] == ["ONCEMQ_HEADER_A"]
    assert os.fsencode(variables["ONCEMQ_HEADER_A"]) == b"\xff"
    assert (variables["ONCEMQ_TRY"], variables["ONCEMQ_IDEMPOTENCY_KEY"]) == ("2", "1f-7")


def test_a_command_may_be_oncemq_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its message variables are not mistaken for misspelt settings."""
    for name in (*options.MESSAGE_VARIABLES, "ONCEMQ_HEADER_A"):
        monkeypatch.setenv(name, "1")
    options.warn_of_unknown_variables()
    assert capsys.readouterr().err == ""


def test_a_message_whose_command_fails_is_redelivered(works: Works) -> None:
    works.share()
    works.shell.ok("put", works.topic, "x")
    done = works.run("--count", "3", "--retry-delay", "10ms", "--json", *works.script('test "$ONCEMQ_TRY" = 3'))
    assert done.returncode == 0
    summary = summary_of(done.stderr)
    assert (summary["done"], summary["failed"], summary["undone"]) == (1, 2, 0)
    assert b"offset 0: exit code 1; it is redelivered in 20 ms." in done.stderr
    assert works.shell.subscription()["lag"] == 0


def test_failed_messages_are_exit_code_1_and_no_messages_are_3(works: Works) -> None:
    works.share()
    assert works.run("--wait", "0", *works.script("true")).returncode == 3
    works.shell.ok("put", works.topic, "x")
    assert works.run("--count", "1", *works.script("exit 9")).returncode == 1
    assert works.shell.subscription()["lag"] == 1


def test_a_message_that_fails_too_often_becomes_a_dead_letter(works: Works) -> None:
    works.share("--tries-max", "2", "--dead", f"{works.topic} lost")
    works.shell.ok("put", works.topic, "x")
    done = works.run("--count", "2", "--retry-delay", "0", "--json", *works.script("exit 65"))
    assert (done.returncode, summary_of(done.stderr)["dead"]) == (1, 1)
    [letter] = works.shell.objects("dead", "ls", f"{works.topic} lost")
    assert (letter["value"], letter["tries"], letter["reason"]) == ("x", 2, "exit code 65")
    assert works.shell.subscription()["lag"] == 0


def test_a_message_that_can_not_be_decoded_becomes_a_dead_letter(works: Works, broker: BrokerProcess) -> None:
    works.share("--tries-max", "2", "--dead", f"{works.topic} lost", "--lease", "100ms")
    with broker.connect() as client:
        send(client, Put(works.topic, envelope(BAD)), BAD)
        client.put(works.topic, b"behind")
        worker = works.start(*works.script('echo "$(cat)" >> done'))
        wait_until(lambda: bool(client.dead_letters(f"{works.topic} lost")), "the dead letter", TIMEOUT_S)
        assert works.await_lines("done", 1) == ["behind"]
    worker.send_signal(signal.SIGTERM)
    _, stderr = worker.communicate()
    assert f"offset 0 of '{works.topic}' can't be decoded: ".encode() in stderr


def test_several_jobs_have_lines_of_their_own(works: Works) -> None:
    works.share()
    works.shell.put_numbers(8)
    done = works.run("--jobs", "4", "--wait", "0.5", *works.script("printf 'a\\nb'; cat >&2"))
    assert done.returncode == 0
    lines = sorted(b"[%d] %s" % (number, word) for number in range(8) for word in (b"a", b"b"))
    assert sorted(done.stdout.splitlines()) == lines
    errors = done.stderr.splitlines()
    assert sorted(errors[:-1]) == [b"[%d] %d" % (number, number) for number in range(8)]
    assert errors[-1] == b"8 done, 0 failed."


def test_workers_share_the_messages_and_each_is_done_once(works: Works) -> None:
    works.share()
    works.shell.put_numbers(30)
    script = works.script('echo "$(cat)" >> done')
    processes = [works.start("--jobs", "2", "--wait", "1", *script) for _ in range(3)]
    for process in processes:
        process.communicate(timeout=TIMEOUT_S)
    assert sorted(map(int, works.lines("done"))) == list(range(30))
    assert works.shell.subscription()["lag"] == 0


def test_a_long_command_is_not_given_to_another_worker(works: Works) -> None:
    """It runs for several leases while another worker is waiting."""
    works.share("--lease", "300ms")
    works.shell.ok("put", works.topic, "x")
    script = works.script("echo begun >> runs; sleep 1.5")
    processes = [works.start("--wait", "2.5", *script) for _ in range(2)]
    codes = []
    for process in processes:
        process.communicate(timeout=TIMEOUT_S)
        codes.append(process.returncode)
    assert sorted(codes) == [0, 3]
    assert works.lines("runs") == ["begun"]


def test_a_command_that_takes_too_long_is_killed_with_all_that_it_has_started(works: Works) -> None:
    works.share("--lease", FOREVER)
    works.shell.ok("put", works.topic, "x")
    script = works.script("sleep 600 & echo $! >> pids; wait")
    done = works.run("--count", "1", "--timeout-per-message", "500ms", "--retry-delay", "0", *script)
    assert done.returncode == 1
    assert b"offset 0: killed after 500 ms" in done.stderr
    [pid] = map(int, works.lines("pids"))
    wait_until(lambda: not is_alive(pid), "the command's own child is killed")
    assert works.run("--count", "1", *works.script("true")).returncode == 0


def is_alive(pid: int) -> bool:
    """Whether a process is dead; a zombie is dead, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_worker_that_gets_a_signal_lets_its_command_finish(works: Works, number: int, code: int) -> None:
    works.share("--lease", FOREVER)
    works.shell.put_numbers(2)
    process = works.start(*works.script("echo $(cat) >> begun; until test -e go; do sleep 0.05; done"))
    works.await_lines("begun", 1)
    # As a terminal does: to the whole process group.
    os.killpg(process.pid, number)
    assert process.stderr is not None
    assert b"a second signal kills them" in process.stderr.readline()
    (works.folder / "go").touch()
    assert process.stderr.read() == b"1 done, 0 failed.\n"
    assert process.wait(TIMEOUT_S) == code
    assert works.lines("begun") == ["0"]
    entry = works.shell.subscription()
    assert (entry["lag"], entry["leased"], entry["members"]) == (1, 0, 0)


def test_a_second_signal_kills_the_command_and_the_message_is_returned(works: Works) -> None:
    works.share("--lease", FOREVER)
    works.shell.ok("put", works.topic, "x")
    process = works.start(*works.script("echo $$ >> pids; sleep 600"))
    [pid] = map(int, works.await_lines("pids", 1))
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert b"a second signal kills them" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert b"1 returned" in process.stderr.read()
    assert process.wait(TIMEOUT_S) == 143
    assert not is_alive(pid)
    assert works.run("--count", "1", *works.script("true")).returncode == 0


def test_commands_are_killed_after_the_grace_period(works: Works) -> None:
    works.share("--lease", FOREVER)
    works.shell.ok("put", works.topic, "x")
    process = works.start("--grace", "100ms", *works.script("echo $$ >> pids; sleep 600"))
    works.await_lines("pids", 1)
    process.send_signal(signal.SIGTERM)
    assert b"1 returned" in process.communicate(timeout=TIMEOUT_S)[1]
    assert works.run("--count", "1", *works.script("true")).returncode == 0


def test_the_message_of_a_killed_worker_is_done_by_another(works: Works) -> None:
    works.share("--lease", "1s")
    works.shell.ok("put", works.topic, "x")
    victim = works.start(*works.script("echo $$ >> pids; sleep 600"))
    [pid] = map(int, works.await_lines("pids", 1))
    try:
        victim.kill()
        done = works.run("--count", "1", *works.script('cat; echo " at try $ONCEMQ_TRY"'))
    finally:
        os.killpg(pid, signal.SIGKILL)
    assert (done.returncode, done.stdout) == (0, b"x at try 2\n")
    assert works.shell.subscription()["lag"] == 0


def test_a_worker_continues_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    broker = ForkedBroker(tmp_path / "data")
    broker.start()
    works = Works(Shell(broker.url), tmp_path)
    try:
        works.share("--lease", FOREVER)
        works.shell.put_numbers(3)
        script = works.script("echo $(cat) >> begun; until test -e go; do sleep 0.05; done")
        process = works.start("--count", "3", *script)
        works.await_lines("begun", 1)
        broker.kill()
        broker.start()
        (works.folder / "go").touch()
        assert process.communicate(timeout=TIMEOUT_S)[1] == b"3 done, 0 failed.\n"
        assert works.lines("begun") == ["0", "1", "2"]
        assert works.shell.subscription()["lag"] == 0
    finally:
        works.shell.end_all()
        broker.kill()


def test_a_worker_creates_the_subscription(works: Works) -> None:
    works.shell.ok("topics", "create", works.topic, "--retain", "1d")
    works.shell.put_numbers(2)
    policy = ("--lease", "10s", "--tries-max", "4", "--key-order")
    done = works.run("--from", "new", "--wait", "0", *policy, *works.script("cat"))
    assert done.returncode == 3
    sharing = works.shell.subscription()["sharing"]
    assert sharing == {"lease_ms": 10_000, "tries_max": 4, "dead_topic": f"{works.topic}.dead", "key_order": True}
    done = works.shell.run("work", works.topic, "others", "--from", "earliest", "--count", "2", *works.script("cat"))
    assert (done.returncode, done.stdout) == (0, b"01")


def test_a_worker_refuses_a_subscription_with_other_settings(works: Works) -> None:
    works.share("--lease", "10s", "--tries-max", "3")
    assert works.run("--wait", "0", *works.script("true")).returncode == 3
    assert works.run("--wait", "0", "--lease", "10s", *works.script("true")).returncode == 3
    done = works.run("--wait", "0", "--tries-max", "9", *works.script("true"))
    assert done.returncode == 4
    assert b"--lease 10s --tries-max 3" in done.stderr
    works.shell.ok("sub", works.topic, "alice")
    done = works.shell.run("work", works.topic, "alice", "--", "true")
    assert done.returncode == 4
    assert b"oncemq listen" in done.stderr


def test_a_nested_put_reaches_the_same_broker_without_a_warning(works: Works) -> None:
    works.share()
    works.shell.ok("sub", f"{works.topic}.out", "alice")
    works.shell.ok("put", works.topic, "x", "--header", "a=b")
    put = f"{' '.join(COMMAND)} put '{works.topic}.out' -"
    done = works.run("--count", "1", "--", "sh", "-c", f"cat | {put}")
    assert (done.returncode, done.stderr) == (0, b"1 done, 0 failed.\n")
    assert works.shell.ok("get", f"{works.topic}.out", "alice") == b"x\n"
