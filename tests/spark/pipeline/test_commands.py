"""`oncemq pipeline`: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from oncemq.cli.main import cli
from oncemq.protocol.errors import PipelineFailed
from oncemq.testing.spark import QUICK_START
from tests.spark.pipeline.files import GOOD, changed
from tests.spark.pipeline.test_runner import put_orders, read_totals

if TYPE_CHECKING:
    from oncemq.client.sync import Client
    from oncemq.testing.broker_process import BrokerProcess

DEADLINE_S = 300
TOTALS = """\
name: totals
source:
  topic: orders
value:
  format: json
  schema: {id: bigint, price: double, pieces: int}
transform:
  sql: SELECT id, price * pieces AS total FROM messages
target:
  topic: totals
  create: true
"""


def run(*arguments: str, **rest: Any) -> Result:
    return CliRunner().invoke(cli, ["pipeline", *arguments], **rest)


@pytest.fixture
def good(tmp_path: Path) -> str:
    (tmp_path / "good.yaml").write_text(GOOD)
    return str(tmp_path / "good.yaml")


@pytest.fixture
def bad(tmp_path: Path) -> str:
    (tmp_path / "bad.yaml").write_text(changed(("orders", "orders.*"), ("totals\nsource", "a/b\nsource")))
    return str(tmp_path / "bad.yaml")


def test_validate_says_what_is_wrong_and_where(good: str, bad: str) -> None:
    assert (run("validate", good).exit_code, run("validate", good).output) == (0, f"{good}: no problems.\n")
    result = run("validate", good, bad)
    assert result.exit_code == 2
    lines = result.stdout.splitlines()
    assert lines[0] == f"{good}: no problems."
    assert [line.removeprefix(f"{bad}:").split(": ")[0] for line in lines[1:]] == ["1:7", "3:10"]


def test_validate_prints_data_where_it_is_asked_for(bad: str) -> None:
    result = run("validate", bad, "--json")
    assert result.exit_code == 2
    objects = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(one["file"], one["line"], one["column"]) for one in objects] == [(bad, 1, 7), (bad, 3, 10)]
    assert objects[1]["advice"] == "write `pattern: …` for several topics"


def test_run_explains_problems_before_spark_starts(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemq.spark.session.build", None)
    result = run("run", bad)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{bad}:1:7: ")
    assert len(result.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--conf", "spark.x"), "KEY=VALUE"),
        (("--trigger", "often"), "use available-now or a duration"),
        (("--url", "memory:"), "oncemq://"),
    ],
)
def test_an_option_that_can_not_be_is_a_usage_error(
    options: tuple[str, ...], words: str, good: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemq.spark.session.build", None)
    result = run("run", good, *options)
    assert result.exit_code == 2, result.output
    assert words in result.stderr


def test_a_trigger_of_the_command_line_is_checked_with_the_rest(good: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemq.spark.session.build", None)
    Path(good).write_text(GOOD + "ack_last: true\n")
    result = run("run", good, "--trigger", "5s")
    assert result.exit_code == 2
    assert "only a run that ends has a last batch to ack" in result.stderr


@pytest.fixture
def broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks it."""
    monkeypatch.setattr("oncemq.spark.pipeline.runs.broker_wait.BrokerWait.wait", lambda _: True)


def test_a_broker_that_is_away_is_known_before_spark_starts(good: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemq.spark.session.build", None)
    result = run("run", good, "--url", "oncemq://127.0.0.1:9", "--timeout", "0.05", "--tries", "1")
    assert result.exit_code == 6
    assert "Start the broker (`oncemq serve`)" in result.stderr


class FakeSession:
    stopped = 0
    sparkContext = SimpleNamespace(setLogLevel=str)  # noqa: N815 - Spark's name

    def stop(self) -> None:
        FakeSession.stopped += 1


@pytest.mark.usefixtures("broker_answers")
def test_a_run_that_fails_is_one_sentence_and_its_exit_code(good: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        try:
            raise ValueError("a hundred lines of Java")
        except ValueError as error:
            raise PipelineFailed("it broke") from error

    before = FakeSession.stopped
    monkeypatch.setattr("oncemq.spark.session.build", lambda *_, **__: FakeSession())
    monkeypatch.setattr("oncemq.spark.pipeline.runner.run", fail)
    result = run("run", good)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == "error: it broke"
    assert "Java" not in result.stderr
    assert FakeSession.stopped == before + 1
    assert "a hundred lines of Java" in run("run", good, "--traceback").stderr
    assert "a hundred lines of Java" in run("run", good, env={"ONCEMQ_TRACEBACK": "1"}).stderr


@pytest.mark.usefixtures("broker_answers")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_run_in_an_orderly_way(
    number: signal.Signals, code: int, good: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*_: Any, is_stopping: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)
        deadline_s = time.monotonic() + 10
        while not is_stopping():
            assert time.monotonic() < deadline_s

    before = FakeSession.stopped
    monkeypatch.setattr("oncemq.spark.session.build", lambda *_, **__: FakeSession())
    monkeypatch.setattr("oncemq.spark.pipeline.runner.run", wait)
    assert run("run", good).exit_code == code
    assert FakeSession.stopped == before + 1


def start(broker: BrokerProcess, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "oncemq", "pipeline", "run", *arguments, "--master", "local[2]", "--json"]
    command += ["--conf", f"spark.driver.extraJavaOptions={QUICK_START}", "--conf", "spark.driver.memory=1g"]
    environment = {**os.environ, "ONCEMQ_URL": broker.url}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


@pytest.mark.spark
def test_a_pipeline_runs_until_its_group_of_processes_is_told_to_end(
    oncemq_broker: BrokerProcess, oncemq_client: Client, tmp_path: Path
) -> None:
    (tmp_path / "totals.yaml").write_text(TOTALS)
    oncemq_client.subscribe("totals", "reader")
    put_orders(oncemq_client, range(20))
    process = start(oncemq_broker, str(tmp_path / "totals.yaml"), "--trigger", "100ms")
    try:
        wait_for(process, oncemq_client, 20)
        put_orders(oncemq_client, range(20, 40))
        wait_for(process, oncemq_client, 40)
        batches = read_batches(process, 40)
        # As systemd does: Java and its workers get it too.
        os.killpg(process.pid, signal.SIGTERM)
        output, errors = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    # Spark may warn that it is slow, and a worker that has lost its JVM may begin a traceback before it is killed too.
    # Nothing else is to be said: a traceback of the pipeline's own would end it with another code.
    said = errors.partition("Traceback (most recent call last):")[0].splitlines()
    assert (process.returncode, [line for line in said if " WARN " not in line]) == (143, [])
    *more, end = [json.loads(line) for line in output.splitlines()]
    assert sum(batch["rows"] for batch in (*batches, *more)) == 40
    assert (end["event"], end["rows"], end["lag"], end["is_stopped"]) == ("end", 40, 0, True)
    assert read_totals(oncemq_client) == {number: number / 2 for number in range(40)}


def read_batches(process: subprocess.Popen[str], rows: int) -> list[dict[str, Any]]:
    """Return the batches that are reported, up to the one with the last of these rows."""
    assert process.stdout is not None
    batches: list[dict[str, Any]] = []
    while sum(batch["rows"] for batch in batches) < rows:
        batches.append(json.loads(process.stdout.readline()))
    return batches


def wait_for(process: subprocess.Popen[str], client: Client, count: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while len(read_totals(client)) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.mark.usefixtures("broker_answers")
def test_the_broker_of_a_run_is_that_of_the_command_or_of_the_file(
    good: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = tmp_path / "contexts.toml"
    contexts.write_text('[context.prod]\nurl = "oncemq://prod:1"\n[context.test]\nurl = "oncemq://test:1"\n')
    monkeypatch.setenv("ONCEMQ_CONTEXTS", str(contexts))
    monkeypatch.chdir(tmp_path)
    reached: list[dict[str, str]] = []

    def note(*_: Any, **arguments: Any) -> None:
        reached.append({name: arguments[name] for name in ("url", "context", "token_file", "tls") if name in arguments})

    monkeypatch.setattr("oncemq.spark.session.build", lambda *_, **__: FakeSession())
    monkeypatch.setattr("oncemq.spark.pipeline.runner.run", note)
    Path(good).write_text(GOOD + "context: prod\n")
    files = ["--token-file", "a.token", "--tls", "true"]
    for arguments in ([], ["--context", "test"], ["--url", "oncemq://other:1", *files]):
        assert run("run", good, *arguments).exit_code == 0
    token_file = str(tmp_path / "a.token")
    assert reached == [
        {"context": "prod"},
        {"context": "test"},
        {"url": "oncemq://other:1", "token_file": token_file, "tls": "true"},
    ]
    assert "no context 'gone'" in run("run", good, "--context", "gone").stderr
    Path("oncemq.toml").write_text('[client]\nurl = "oncemq://prod:1"\ntoken = "sss"\n')
    Path("oncemq.toml").chmod(0o600)
    Path(good).write_text(GOOD)
    result = run("run", good)
    assert (result.exit_code, len(reached)) == (2, 3)
    assert "oncemq.toml: client.token is not passed to Spark's workers" in result.stderr
    assert "sss" not in result.stderr
