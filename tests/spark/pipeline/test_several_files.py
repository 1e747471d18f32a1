"""`oncemq pipeline run` with several files, and files with several sources."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from oncemq.cli.main import cli
from oncemq.protocol.errors import TopicUnknown
from oncemq.spark.pipeline import Pipeline, RunningPipeline
from oncemq.spark.pipeline.progress import Reporter, Summary
from tests.spark.pipeline.files import GOOD, changed, problems_in
from tests.spark.pipeline.test_runner import put_orders, read_totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.client.sync import Client
    from oncemq.testing.broker_process import BrokerProcess

DEADLINE_S = 30
JOIN = """\
name: paid
sources:
  orders:
    topic: orders
    columns: [timestamp]
    value: {format: json, schema: id bigint}
    watermark: {column: message_timestamp, delay: 10m}
  payments:
    topics: [cards, cash]
    value: {format: json, schema: id bigint}
tables:
  prices: {topic: prices, value: {format: json, schema: id bigint}}
transform:
  sql: SELECT orders.id FROM orders JOIN payments ON orders.id = payments.id JOIN prices ON orders.id = prices.id
target: {topic: paid}
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["pipeline", "run", *arguments])


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands use the session of the tests."""
    monkeypatch.setattr("oncemq.spark.session.build", lambda *_, **__: spark)
    monkeypatch.setattr("oncemq.spark.session.stop", lambda _: None)
    yield
    spark.sparkContext.setLogLevel("WARN")


@pytest.mark.usefixtures("shared")
def test_pipelines_run_together_and_one_that_fails_is_named(
    broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.subscribe("totals", "reader")
    put_orders(client, range(5))
    good = changed(("price double", "price double, pieces int"), ("price FROM", "price * pieces AS total FROM"))
    (tmp_path / "good.yaml").write_text(good)
    wrong = good.replace("name: totals", "name: wrong").replace("price *", "raise_error('so be it') AS x, price *")
    (tmp_path / "wrong.yaml").write_text(wrong)
    files = [str(tmp_path / name) for name in ("good.yaml", "wrong.yaml")]
    result = run(*files, "--json", "--url", broker.url)
    assert result.exit_code == 1, result.output
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert {(event["event"], event["pipeline"]) for event in events} == {
        ("batch", "totals"),
        ("end", "totals"),
        ("error", "wrong"),
    }
    [error] = [event for event in events if event["event"] == "error"]
    assert (error["code"], "so be it" in error["text"]) == ("PIPELINE_FAILED", True)
    assert read_totals(client) == {number: number / 2 for number in range(5)}


class FakeRuns:
    """Pipelines that do what the test says instead of `runner.start`, in a session that is no session."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **executes: Callable[[Callable[[], bool]], bool]) -> None:
        """Each one is given whether it is to stop, and returns whether it was stopped."""
        self.executes = executes
        self.handles: dict[str, RunningPipeline] = {}
        session = SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=str))
        monkeypatch.setattr("oncemq.spark.session.build", lambda *_, **__: session)
        monkeypatch.setattr("oncemq.spark.session.stop", lambda _: None)
        monkeypatch.setattr("oncemq.spark.pipeline.runs.broker_wait.BrokerWait.wait", lambda _: True)
        monkeypatch.setattr("oncemq.spark.pipeline.runner.start", self._start)

    def _start(self, pipeline: Pipeline, *, reporter: Reporter, **_: Any) -> RunningPipeline:
        def execute(reporter: Reporter, is_stopping: Callable[[], bool], on_query: Callable[[Any], None]) -> Summary:
            del reporter, on_query
            is_stopped = self.executes[pipeline.name](is_stopping)
            return Summary(name=pipeline.name, batches=0, rows=0, duration_s=0, lag=0, is_stopped=is_stopped)

        handle = self.handles[pipeline.name] = RunningPipeline(pipeline.name, execute, reporter)
        return handle

    def statuses(self) -> dict[str, str]:
        return {name: handle.status for name, handle in list(self.handles.items())}


def until_stopped(is_stopping: Callable[[], bool]) -> bool:
    wait_until(is_stopping)
    return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def fail(_: Callable[[], bool]) -> bool:
    raise TopicUnknown("there is no topic 'x'")


@pytest.fixture
def three(tmp_path: Path) -> list[str]:
    for name in "abc":
        (tmp_path / f"{name}.yaml").write_text(changed(("totals", name)))
    return [str(tmp_path / f"{name}.yaml") for name in "abc"]


def test_a_failure_stops_the_other_pipelines_only_if_it_is_to(
    three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = FakeRuns(monkeypatch, a=until_stopped, b=fail, c=until_stopped)
    result = run(*three, "--on-failure", "stop")
    assert (result.exit_code, runs.statuses()) == (5, {"a": "stopped", "b": "failed", "c": "stopped"})
    assert "b has failed: there is no topic 'x'" in result.stderr

    def after_the_failure(is_stopping: Callable[[], bool]) -> bool:
        wait_until(lambda: runs.statuses().get("b") == "failed")
        # The command looks at its pipelines every 100 ms.
        time.sleep(0.5)
        return is_stopping()

    runs = FakeRuns(monkeypatch, a=after_the_failure, b=fail, c=after_the_failure)
    assert run(*three).exit_code == 5
    assert runs.statuses() == {"a": "done", "b": "failed", "c": "done"}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_all_pipelines_in_an_orderly_way(
    number: signal.Signals, code: int, three: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(is_stopping: Callable[[], bool]) -> bool:
        os.kill(os.getpid(), number)
        return until_stopped(is_stopping)

    runs = FakeRuns(monkeypatch, a=until_stopped, b=until_stopped, c=interrupt)
    assert run(*three).exit_code == code
    assert set(runs.statuses().values()) == {"stopped"}


def test_a_failure_is_printed_with_the_name_of_its_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    from oncemq.cli.pipeline.execution import _report_failure

    assert _report_failure("totals", TopicUnknown("there is no topic 'x'"), as_json=False).exit_code == 5
    assert capsys.readouterr().err.startswith("error: totals has failed: there is no topic 'x'")
    with pytest.raises(ZeroDivisionError):
        _report_failure("totals", ZeroDivisionError(), as_json=False)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (GOOD, "the pipelines 'totals' and 'totals' have the name totals in common"),
        (
            changed(("totals", "other")).replace("topic: orders", "topic: orders\n  subscription: totals"),
            "subscription",
        ),
        (changed(("totals", "other")) + "checkpoint: checkpoints/totals\n", "the checkpoint"),
    ],
)
def test_pipelines_that_would_disturb_each_other_are_refused(
    other: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemq.spark.session.build", None)
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text(other)
    result = run(str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"))
    assert result.exit_code == 2
    assert words in result.stderr
    both = (str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"))
    assert "--checkpoint is for one file" in run(*both, "--checkpoint", str(tmp_path)).stderr


def test_a_limit_of_the_command_line_replaces_that_of_the_file() -> None:
    from oncemq.cli.pipeline.execution import limited
    from oncemq.spark.pipeline import Pipeline, Source, Trigger
    from oncemq.spark.targets import ConsoleTarget

    def limit_s(reach: dict[str, Any], **fields: Any) -> float | None:
        pipeline = Pipeline(name="p", source=Source(topic="t"), target=ConsoleTarget(), **fields)
        return limited(pipeline, reach).broker_timeout_s

    assert limit_s({"timeout_s": None, "tries": None}) == 30
    assert limit_s({}, trigger=Trigger(every="5s")) is None
    assert limit_s({}, trigger=Trigger(every="5s"), broker_timeout="10m") == 600
    assert limit_s({"tries": 20}, broker_timeout="10m") == 20
    assert limit_s({"timeout_s": 0.5, "tries": 4}) == 2


def test_a_file_with_several_sources_has_no_problems(tmp_path: Path) -> None:
    assert problems_in(tmp_path, JOIN) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("  payments:\n", "  pay-ments:\n", "8:3: 'pay-ments' can't be the name of a view"),
        ("  prices:", "  Orders:", "12:3: there is another view 'Orders'"),
        ("topics: [cards, cash]", "topics: [cards, cards]", "9:21: the topic 'cards' is listed twice"),
        ("delay: 10m", "delay: soon", "7:51: 'soon' is not a duration"),
        ("column: message_timestamp", "column: at", "7:25: there is no column 'at'"),
        ("{topic: prices, value", "{csv: prices.csv, value", "12:11: csv needs a schema"),
        ("{topic: prices, value: {format: json, schema: id bigint}}", "{}", "12:11: the table names neither files"),
        ("JOIN prices ON orders.id = prices.id", "", "14:8: the query does not read the view prices"),
        ("target:", "value: {format: text}\ntarget:", "15:1: a pipeline with 'sources' has no 'value'"),
        ("columns: [timestamp]", "kolumns: [timestamp]", "5:5: sources.orders has no key 'kolumns'"),
        (
            "topics: [cards, cash]",
            "topic: a\n    subscription: paid.orders",
            "10:19: the sources 'orders' and",
        ),
        ("target: {topic: paid}", "target: {topic: cash}", "15:17: 'cash' is also a topic of the source"),
        ("target: {topic: paid}", "target: {topic: paid}\noutput: update", "15:9: `output: update` needs a key"),
        ("target: {topic: paid}", "target: {parquet: ./x}\noutput: update", "16:9: only topics and the console have"),
        ("target: {topic: paid}", "target: {topic: paid}\nbroker_timeout: long", "16:17: 'long' is not a duration"),
    ],
)
def test_problems_of_several_sources_have_their_place(old: str, new: str, problem: str, tmp_path: Path) -> None:
    assert old in JOIN
    found = problems_in(tmp_path, JOIN.replace(old, new, 1))
    assert any(each.startswith(problem) for each in found), found
