"""The root: start-up, errors and exit codes, completion, logging. No broker runs here."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from oncemq import errors
from oncemq.cli import logs, options
from oncemq.cli.main import cli
from oncemq.engine.replies import SubscriptionInfo, TopicInfo
from oncemq.version import __version__


def run(*arguments: str, **rest: Any) -> Result:
    return CliRunner().invoke(cli, arguments, **rest)


class Broken:
    """A client that answers everything with one error."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getattr__(self, _: str) -> Any:
        raise self._error


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts an object in the place of every command's client."""

    def use(client: object) -> None:
        @contextmanager
        def connected(*_: Any, **__: Any) -> Iterator[object]:
            yield client

        for name in ("get", "health", "put", "sessions", "sub", "subs", "tail", "topics"):
            monkeypatch.setattr(f"oncemq.cli.{name}.connected", connected)
        monkeypatch.setattr(options, "connected", connected)

    return use


def test_help_imports_neither_zeromq_nor_msgspec() -> None:
    code = (
        "import sys; sys.argv = ['oncemq', '--help']\n"
        "from oncemq.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: print([name for name in ('zmq', 'msgspec', 'rich', 'xxhash') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "oncemq", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"oncemq, version {__version__}\n"


def test_an_unknown_command_is_a_usage_error() -> None:
    assert run("fetch").exit_code == 2


@pytest.mark.parametrize("kind", list(errors.BY_CODE.values()), ids=list(errors.BY_CODE))
def test_an_error_ends_with_its_exit_code_and_says_what_to_do(kind: type[errors.OnceMQError], connect: Any) -> None:
    connect(Broken(kind("it broke")))
    result = run("health")
    assert result.exit_code == kind.exit_code
    assert result.stdout == ""
    assert result.stderr == f"error: it broke\n       {kind.advice}\n"


def test_with_json_an_error_is_json_too(connect: Any) -> None:
    connect(Broken(errors.TopicUnknown("no topic")))
    result = run("put", "nowhere", "x", "--json")
    assert result.exit_code == 5
    assert json.loads(result.stderr) == {
        "code": "TOPIC_UNKNOWN",
        "text": "no topic",
        "advice": errors.TopicUnknown.advice,
    }


def test_an_interrupt_is_130(connect: Any) -> None:
    connect(Broken(KeyboardInterrupt()))
    assert run("health").exit_code == 130


def test_a_noun_alone_lists_with_and_without_options(connect: Any) -> None:
    topic = TopicInfo("orders", 3, True, 0, 12, 2048, 1, 2, 86_400_000, 0)
    connect(SimpleNamespace(topics=lambda: [topic]))
    text = run("topics").stdout
    assert text == run("topics", "ls").stdout
    assert "orders" in text
    assert "2.0 KiB" in text
    assert "1 d" in text
    assert json.loads(run("topics", "--json").stdout)["end_offset"] == 12


def test_subscriptions_are_listed_with_their_lag(connect: Any) -> None:
    connect(SimpleNamespace(subscriptions=lambda topic: [SubscriptionInfo(topic or "t", "alice", 3, 10, 1)]))
    assert json.loads(run("subs", "orders", "--json").stdout)["lag"] == 7
    assert run("subs").stdout.split() == ["TOPIC", "SUBSCRIBER", "ACKED", "END", "LAG", "t", "alice", "3", "10", "7"]


def test_removing_asks_first(connect: Any) -> None:
    removed: list[str] = []
    connect(SimpleNamespace(delete_topic=removed.append))
    assert run("topics", "rm", "orders", input="n\n").exit_code == 1
    assert removed == []
    assert run("topics", "rm", "orders", input="y\n").exit_code == 0
    assert run("topics", "rm", "orders", "--yes").exit_code == 0
    assert removed == ["orders", "orders"]


def test_a_header_without_an_equals_sign_is_a_usage_error(connect: Any) -> None:
    connect(Broken(AssertionError()))
    assert run("put", "t", "x", "--header", "a").exit_code == 2


def test_json_and_format_exclude_each_other(connect: Any) -> None:
    connect(Broken(AssertionError()))
    assert run("get", "t", "s", "--json", "--format", "{value}").exit_code == 2


@pytest.mark.parametrize("start", ["latest", "-1", "1.5"])
def test_where_to_begin_is_checked(start: str, connect: Any) -> None:
    connect(Broken(AssertionError()))
    assert run("sub", "t", "s", "--from", start).exit_code == 2


def test_serve_refuses_open_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("serve", "--listen", "tcp://0.0.0.0:5555")
    assert result.exit_code == 2
    assert "insecure" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_back(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_ONCEMQ_COMPLETE" in result.stdout


def complete(words: str) -> list[str]:
    environment = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "_ONCEMQ_COMPLETE": "bash_complete",
    }
    result = CliRunner(env=environment).invoke(cli, [], prog_name="oncemq")
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


def test_commands_and_options_are_completed() -> None:
    assert complete("oncemq su") == ["sub", "subs"]
    assert complete("oncemq topics r") == ["rm"]
    assert complete("oncemq get t s --co") == ["--count", "--config"]


def test_topics_are_completed_from_the_broker(connect: Any) -> None:
    connect(SimpleNamespace(topics=lambda: [SimpleNamespace(name="orders"), SimpleNamespace(name="other")]))
    assert complete("oncemq put ord") == ["orders"]


def test_completion_is_silent_where_no_broker_answers(connect: Any) -> None:
    connect(Broken(errors.BrokerAway()))
    assert complete("oncemq put ord") == []


def make_record(**extra: object) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "oncemq.broker", "levelname": "WARNING", "msg": "slow %s", "args": ("sync",), "created": 0.5, **extra}
    )


def test_log_lines_as_json_carry_their_extras() -> None:
    assert json.loads(logs.JsonFormatter().format(make_record(sync_ms=7))) == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "warning",
        "logger": "oncemq.broker",
        "text": "slow sync",
        "sync_ms": 7,
    }


def test_log_lines_have_colours_only_where_asked_for() -> None:
    plain = logs.TextFormatter(colours=False).format(make_record())
    assert plain == "1970-01-01T00:00:00.500Z warning oncemq.broker: slow sync"
    assert "\033[33m" in logs.TextFormatter(colours=True).format(make_record())
