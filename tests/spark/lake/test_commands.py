"""`oncemq pipeline archive` and `restore`: what they take, what they print, and how they end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from oncemq.cli.main import cli
from oncemq.cli.pipeline.group import COMMANDS, pipeline
from oncemq.spark.pipeline.model import Pipeline
from oncemq.spark.targets.declarations import DeltaTarget
from tests.spark.lake.archives import add, rows, without_spark

if TYPE_CHECKING:
    from oncemq.client.sync import Client
    from oncemq.testing.broker_process import BrokerProcess

__all__ = ["without_spark"]


def run(*arguments: str, **rest: Any) -> Result:
    return CliRunner().invoke(cli, ["pipeline", *arguments], **rest)


@pytest.fixture
def archived(monkeypatch: pytest.MonkeyPatch) -> list[Pipeline]:
    """What would be run, with a broker that answers and without a JVM."""
    found: list[Pipeline] = []
    monkeypatch.setattr("oncemq.spark.pipeline.runs.broker_wait.BrokerWait.wait", lambda _: True)
    context = SimpleNamespace(setLogLevel=lambda _: None)
    session = SimpleNamespace(stop=lambda: None, sparkContext=context)
    monkeypatch.setattr("oncemq.spark.session.build", lambda *_, **__: session)
    monkeypatch.setattr("oncemq.spark.pipeline.runner.run", lambda pipeline, **_: found.append(pipeline))
    return found


@pytest.mark.parametrize("name", ["archive", "restore"])
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    command = pipeline.get_command(SimpleNamespace(), name)  # type: ignore[arg-type]
    assert command is not None
    assert (command.help or "").splitlines()[0] == COMMANDS[name].short_help


def test_every_option_of_an_archive_reaches_it(archived: list[Pipeline], tmp_path: Path) -> None:
    options = ["--topics", "a, b", "--to", str(tmp_path / "lake"), "--format", "delta", "--subscription", "s"]
    options += ["--checkpoint", str(tmp_path / "c"), "--trigger", "5s", "--max-per-trigger", "7", "--on-loss", "skip"]
    result = run("archive", *options)
    assert (result.exit_code, result.output) == (0, "")
    [made] = archived
    assert made.source is not None
    assert (made.source.topics, made.subscription, made.source.max_per_trigger) == (("a", "b"), "s", 7)
    assert made.source.on_loss == "skip"
    assert made.target == DeltaTarget(path=str(tmp_path / "lake"), partition_by=("topic", "date"), evolve="add")
    assert (made.checkpoint, made.trigger.every, made.ack_last) == (str(tmp_path / "c"), "5s", False)
    assert run("archive", "--pattern", "a.#", "--to", str(tmp_path), "--ack-last").exit_code == 0
    assert archived[1].source is not None
    assert (archived[1].source.pattern, archived[1].ack_last, archived[1].trigger.every) == ("a.#", True, "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "names no topic"),
        (("--topic", "a", "--pattern", "b"), "the source has topic and pattern"),
        (("--topic", "a", "--trigger", "often"), "use available-now or a duration"),
        (("--topic", "a", "--trigger", "5s", "--ack-last"), "only a run that ends has a last batch to ack"),
        (("--topic", "a", "--checkpoint", "c"), "together with its subscription"),
        (("--topic", "a", "--url", "memory:"), "oncemq://"),
    ],
)
def test_an_archive_that_can_not_be_is_explained_before_spark_starts(
    options: tuple[str, ...], words: str, archived: list[Pipeline], tmp_path: Path
) -> None:
    result = run("archive", "--to", str(tmp_path), *options)
    assert (result.exit_code, archived) == (2, []), result.output
    assert words in result.stderr


@pytest.mark.usefixtures("without_spark")
def test_a_restore_says_what_it_did(broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    add(tmp_path, 0, rows("orders", [0, 1, 2, 5]))
    command = ["restore", "--from", str(tmp_path), "--url", broker.url]
    made = run(*command, "--to", "x", "--create", "--retain", "1h")
    assert (made.exit_code, made.stdout) == (0, "Restored 4 messages into 'x' (offsets 0 to 3).\n")
    assert "does not contain 2 of the messages of 'orders' between offsets 0 and 5" in made.stderr
    assert client.topics()[0].retain_ms == 3_600_000
    repeated = run(*command, "--to", "x")
    assert (repeated.exit_code, "nothing changed" in repeated.stdout) == (0, True)
    chosen = run(*command, "--to", "x", "--offsets", "1:3", "--since", "2026-05-01T12:02:00Z", "--json")
    [found] = [json.loads(line) for line in chosen.stdout.splitlines()]
    assert (found["source"], found["target"], found["messages"], found["before"]) == ("orders", "x", 1, False)
    assert (found["first_offset"], found["last_offset"]) == (4, 4)
    assert [message.value for message in client.read("x")] == [b"0", b"1", b"2", b"5", b"2"]


@pytest.mark.usefixtures("without_spark")
def test_a_restore_once_more_can_be_finished_too(broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    add(tmp_path, 0, rows("orders", range(3)))
    command = ["restore", "--from", str(tmp_path), "--url", broker.url, "--to", "x"]
    assert run(*command, "--create").exit_code == 0
    again = run(*command, "--again")
    assert again.stdout == "Restored 3 messages into 'x' (offsets 3 to 5).\n"
    [id] = re.findall(r"--id (\S+)", again.stderr)
    assert "nothing changed" in run(*command, "--id", id).stdout
    assert len(list(client.read("x"))) == 6


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--to", "x"), 5, "topic 'x' does not exist"),
        (("--offsets", "3"), 2, "is not a range of offsets"),
        (("--since", "-2h"), 2, "is not a time"),
        (("--topic", "bills"), 2, "no selected message of topic 'bills'"),
        (("--retain", "1h"), 2, "--create"),
        (("--id", "a", "--again"), 2, "use either id"),
    ],
)
@pytest.mark.usefixtures("client", "without_spark")
def test_a_restore_that_can_not_be_is_explained_before_spark_starts(
    options: tuple[str, ...], code: int, words: str, broker: BrokerProcess, tmp_path: Path
) -> None:
    add(tmp_path, 0, rows("orders", range(3)))
    result = run("restore", "--from", str(tmp_path), "--url", broker.url, *options)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert words in result.stderr
