"""The root: start-up, errors and exit codes, completion, logging. No broker runs here."""

from __future__ import annotations

import importlib
import io
import json
import logging
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

import oncemq
import oncemq.cli
from oncemq import terminal
from oncemq.cli.main import cli
from oncemq.cli.server import logs
from oncemq.cli.server.gateway import _addresses_text
from oncemq.cli.support.command import READ_ONLY_ADVICE
from oncemq.journal.files.check import Report
from oncemq.journal.files.scan import Problem
from oncemq.protocol import errors
from oncemq.protocol.replies import HealthReply, SubscriptionInfo, TopicInfo
from oncemq.protocol.version import __version__
from oncemq.terminal import confirm
from oncemq.tools.bench.results import Row


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
    """Replaces the client of every command, and its internal API, by an object."""

    def use(client: object) -> None:
        @contextmanager
        def connected(*_: Any, **__: Any) -> Iterator[object]:
            yield client

        for module in pkgutil.walk_packages(oncemq.cli.__path__, "oncemq.cli."):
            for name in {"connected", "stateful_client"} & {*vars(importlib.import_module(module.name))}:
                monkeypatch.setattr(f"{module.name}.{name}", connected)
        monkeypatch.setattr("oncemq.client.internal.internal_api", lambda client: client)

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
    advice = READ_ONLY_ADVICE.get(kind.code, kind.advice)
    assert result.stderr == f"error: it broke\n       {advice}\n"


def test_advice_that_is_in_the_text_is_not_repeated(connect: Any) -> None:
    text = f"it broke. {errors.JournalLocked.advice}"
    connect(Broken(errors.JournalLocked(text)))
    assert run("health").stderr == f"error: {text}\n"


def test_a_command_that_only_reads_gives_no_advice_about_messages_in_flight(connect: Any) -> None:
    connect(Broken(errors.BrokerAway("no answer")))
    assert "in flight" not in run("health").stderr
    assert "in flight" in run("put", "t", input="x").stderr
    for kept in ((), ("--state", "none")):
        assert "standard input" not in run("put", "t", "x", *kept).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gateway", "http", "--broker", "nonsense"), "'nonsense' is not an address"),
        (("gateway", "text", "--broker", "tcp://127.0.0.1"), "has no port"),
        (("gateway", "http", "--http", "none"), "nothing to serve"),
        (("journal", "check", "postgresql://localhost/queue"), "pg_amcheck"),
        (("journal", "copy", "nonsense://x", "folder"), "nonsense:// can't hold a journal"),
    ],
)
def test_an_impossible_command_fails_at_once(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_a_gateway_prints_its_addresses() -> None:
    assert "[default: 127.0.0.1:5557]" in " ".join(run("gateway", "push", "--help").stdout.split())
    assert _addresses_text("text", ["tcp://h:1"]) == "Text at tcp://h:1"
    said = _addresses_text("push", ["tcp://h:1", "tcp://h:2", "ipc:///f", "tcp://h:3"])
    assert said == "Push: publish at tcp://h:1, feed at tcp://h:2 and ipc:///f, acks at tcp://h:3"


@pytest.mark.parametrize(("writable_bytes", "room"), [(-1, "unknown"), (2**62, "unknown"), (2**20, "1.0 MiB")])
def test_unknown_free_space_is_shown_as_unknown(connect: Any, writable_bytes: int, room: str) -> None:
    found = HealthReply("1", "b", "j", 0, 0, 0, 0, writable_bytes, {})
    connect(SimpleNamespace(health=lambda: found))
    assert run("health").stdout.splitlines()[-1] == f"space for messages  {room}"


def test_health_says_what_to_do_about_a_clock_that_is_behind(connect: Any) -> None:
    found = HealthReply("1", "b", "j", 0, 0, 0, 0, -1, {"clock_behind_ms": 5 * 24 * 3_600_000, "groups": 1})
    connect(SimpleNamespace(health=lambda: found))
    *_, clock, groups = run("health").stdout.splitlines()
    assert clock.startswith("clock ")
    assert "5 d behind" in clock
    assert "--trust-clock" in clock
    assert groups.startswith("groups ")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("unsub", "t", "s"), errors.NotSubscribed),
        (("unsub", "t", "s"), errors.TopicUnknown),
        (("topics", "rm", "t", "--yes"), errors.TopicUnknown),
        (("sessions", "rm", "s", "--yes"), errors.SessionUnknown),
    ],
)
def test_deleting_what_does_not_exist_gives_no_advice_to_create_it(
    arguments: tuple[str, ...], error: type[errors.OnceMQError], connect: Any
) -> None:
    connect(Broken(error("it is not there")))
    result = run(*arguments)
    assert result.exit_code == error.exit_code
    assert error.advice not in result.stderr
    assert "lists" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [("put", "\udcff", "x"), ("get", "t", "\udcff"), ("put", "t", "x", "--header", "\udcff=1")],
)
def test_a_name_that_is_not_utf8_is_one_sentence(arguments: tuple[str, ...], connect: Any) -> None:
    connect(Broken(AssertionError()))
    result = run(*arguments)
    assert result.exit_code == errors.NameInvalid.exit_code
    assert result.stderr.splitlines()[0].endswith(r"must be UTF-8, and '\xff' is not")


def test_an_address_that_is_not_utf8_is_a_wrong_setting() -> None:
    assert run("health", "--url", "tcp://\udcff:1").exit_code == 2


def test_an_unexpected_error_is_one_line_unless_asked_for_more(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(Broken(ZeroDivisionError("by nothing")))
    result = run("health")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "this is a bug: ZeroDivisionError: by nothing" in result.stderr
    monkeypatch.setenv("ONCEMQ_TRACEBACK", "1")
    assert "Traceback" in run("health").stderr


def test_an_error_of_the_operating_system_is_not_called_a_bug(connect: Any) -> None:
    connect(Broken(OSError(28, "No space left on device")))
    assert run("health").stderr == "error: No space left on device\n"


def test_an_unknown_variable_is_warned_of_with_the_nearest(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(SimpleNamespace(topics=list))
    monkeypatch.setenv("ONCEMQ_TIMEOUT", "3")
    result = run("topics")
    assert result.exit_code == 0
    assert "ONCEMQ_TIMEOUT is not a setting; ONCEMQ_TIMEOUT_S is." in result.stderr


def test_with_json_an_error_is_json_too(connect: Any) -> None:
    connect(Broken(errors.TopicUnknown("no topic")))
    result = run("put", "nowhere", "x", "--json")
    assert result.exit_code == 5
    assert json.loads(result.stderr) == {
        "code": "TOPIC_UNKNOWN",
        "text": "no topic",
        "advice": "Create the topic with `--create`, or subscribe to it first (`oncemq sub`).",
    }


def test_an_interrupt_is_130(connect: Any) -> None:
    connect(Broken(KeyboardInterrupt()))
    assert run("health").exit_code == 130


def test_a_group_without_a_subcommand_lists(connect: Any) -> None:
    topic = TopicInfo("orders", 3, True, 0, 12, 2048, 1, 2, 86_400_000, 0)
    connect(SimpleNamespace(topics=lambda: [topic]))
    text = run("topics").stdout
    assert text == run("topics", "ls").stdout
    assert "orders" in text
    assert "2.0 KiB" in text
    assert "1 d" in text
    assert json.loads(run("topics", "--json").stdout)["end_offset"] == 12


def test_subscriptions_are_listed_with_their_lag(connect: Any) -> None:
    entry = SubscriptionInfo("t", "alice", 3, 10, 1)
    connect(SimpleNamespace(subscriptions=lambda _=None: [entry], patterns=list))
    assert json.loads(run("subs", "orders", "--json").stdout)["lag"] == 7
    assert run("subs").stdout.split() == ["TOPIC", "SUBSCRIBER", "ACKED", "END", "LAG", "t", "alice", "3", "10", "7"]


def test_deleting_asks_for_confirmation(connect: Any) -> None:
    removed: list[str] = []
    connect(SimpleNamespace(delete_topic=removed.append, find_topic={"orders": SimpleNamespace()}.get))
    assert run("topics", "rm", "orders", input="n\n").exit_code == 1
    assert removed == []
    assert run("topics", "rm", "orders", input="y\n").exit_code == 0
    assert run("topics", "rm", "orders", "--yes").exit_code == 0
    assert removed == ["orders", "orders"]
    result = run("topics", "rm", "other", input="y\n")
    assert result.exit_code == 5
    assert "Delete" not in result.stderr


def test_an_interrupt_at_a_confirmation_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("click.termui.visible_prompt_func", interrupted)
    with pytest.raises(KeyboardInterrupt):
        confirm("Really?")


def test_a_header_without_an_equals_sign_is_a_usage_error(connect: Any) -> None:
    connect(Broken(AssertionError()))
    assert run("put", "t", "x", "--header", "a").exit_code == 2


def test_json_and_format_exclude_each_other(connect: Any) -> None:
    connect(Broken(AssertionError()))
    assert run("get", "t", "s", "--json", "--format", "{value}").exit_code == 2


@pytest.mark.parametrize("start", ["latest", "-1", "1.5"])
def test_start_positions_are_checked(start: str, connect: Any) -> None:
    connect(Broken(AssertionError()))
    assert run("sub", "t", "s", "--from", start).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("sub", "t", "s", "--lease", "5s"),
        ("sub", "t.*", "s", "--shared"),
        ("sub", "t", "s", "--shared", "--dead", "d"),
        ("sub", "t", "s", "--shared", "--tries", "5"),
        ("work", "t", "s", "--tries", "5", "--", "true"),
        ("work", "t.*", "s", "--", "true"),
        ("work", "t", "s", "--", "no-such-command-anywhere"),
        ("work", "t", "s"),
        ("topics", "create", "t", "--overflow", "full"),
        ("seek", "t", "s", "yesterday"),
        ("seek", "t", "s", "1969-12-31"),
        ("seek", "t", "s", "-900000d"),
        ("put", "t", "x", "--ttl", "soon"),
        ("listen", "t", "s", "--header", "region"),
        ("dead", "retry", "t.dead"),
        ("dead", "rm", "t.dead", "1", "--all"),
        ("shell", "--as", ""),
    ],
    ids=" ".join,
)
def test_contradictory_options_are_a_usage_error(arguments: tuple[str, ...], connect: Any) -> None:
    connect(Broken(AssertionError()))
    assert run(*arguments).exit_code == 2


def test_an_overflow_needs_a_quota(connect: Any) -> None:
    connect(SimpleNamespace(find_topic={}.get))
    assert run("topics", "create", "t", "--overflow", "drop").exit_code == 2


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
    assert complete("oncemq get t s --co") == ["--count", "--context", "--config"]


def test_topics_are_completed_from_the_broker(connect: Any) -> None:
    names = [SimpleNamespace(name="orders"), SimpleNamespace(name="other")]
    connect(SimpleNamespace(topics=lambda: names, patterns=lambda: [SimpleNamespace(pattern="orders.*")]))
    assert complete("oncemq put ord") == ["orders"]
    assert complete("oncemq get ord") == ["orders", "orders.*"]


def test_subscribers_are_completed_once_the_topic_is_known(connect: Any) -> None:
    known = {"orders": ["kitchen", "accounting"]}
    connect(
        SimpleNamespace(
            subscriptions=lambda topic: [SimpleNamespace(subscriber=name, pattern="") for name in known[topic]],
            patterns=lambda: [SimpleNamespace(pattern="orders.*", subscriber="audit")],
            sessions=lambda: [SimpleNamespace(name="importer")],
        )
    )
    assert complete("oncemq get orders k") == ["kitchen"]
    assert complete("oncemq unsub orders ") == ["kitchen", "accounting"]
    assert complete("oncemq get orders.* a") == ["audit"]
    assert complete("oncemq sessions rm i") == ["importer"]


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


def test_log_lines_escape_names_that_would_change_how_a_line_is_read() -> None:
    record = make_record(msg="new topic '%s'", args=("a\u202eb\x1b[1m",), peer="\u2066")
    text = logs.TextFormatter(colours=False).format(record)
    assert text.endswith("new topic 'a\\u202eb\\x1b[1m' peer=\\u2066")
    line = logs.JsonFormatter().format(record)
    assert line.isascii()
    assert json.loads(line)["text"] == "new topic 'a\u202eb\x1b[1m'"


def test_tracebacks_are_escaped_line_by_line() -> None:
    try:
        raise ValueError("a\u202eb\x1b[1m")
    except ValueError:
        record = make_record(exc_info=sys.exc_info())
    _, first, *_, last = logs.TextFormatter(colours=False).format(record).splitlines()
    assert first == "Traceback (most recent call last):"
    assert last == "ValueError: a\\u202eb\\x1b[1m"


def test_json_lines_stand_for_the_same_values_without_control_characters() -> None:
    entry = {"name": "a\u202eb\x9b31m \U0001f355"}
    line = terminal.json_line(entry)
    assert "\u202e" not in line
    assert "\x9b" not in line
    assert json.loads(line) == entry


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_checked_journal_does_not_control_the_terminal(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report("data", refusal="\u202e", notes=["\u202e"], problems=[Problem("a file", 0, 7, "topic '\u202e'")])
    monkeypatch.setattr("oncemq.broker.offline.check.check", lambda *_: report)
    result = run("journal", "check", ".", *options)
    assert result.exit_code == 9
    assert result.stdout.count("\\u202e") == 3
    assert "\u202e" not in result.output


@pytest.mark.parametrize(("value", "has_colours"), [("1", False), ("", True)])
def test_no_color_is_respected_by_logs_errors_and_warnings(
    value: str, has_colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("NO_COLOR", value)
    root = logging.getLogger()
    former = root.handlers[:], root.level
    try:
        logs.set_up("warning", "text")
        [handler] = root.handlers
        handler.handle(make_record())
    finally:
        root.handlers[:], level = former
        root.setLevel(level)
    terminal.warn("slow")
    for line in stderr.getvalue().splitlines():
        assert ("\033" in line) is has_colours
    assert stderr.getvalue().count("slow") == 2


def test_colours_are_chosen_where_no_color_is_respected() -> None:
    package = Path(oncemq.__file__).parent
    found = {path for path in package.rglob("*.py") if re.search(r"click\.(style|secho)\b", path.read_text("utf-8"))}
    assert found == {package / "terminal.py"}


def test_an_unknown_case_lists_the_cases_one_per_line() -> None:
    result = run("bench", "--case", "nosuch")
    assert result.exit_code == 2
    assert "         put_many, 100 B" in result.stderr.splitlines()


def test_figures_are_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        Row("put_many", 3_210_987.6, "messages/s", 4_000_000.0, "bare encoder", 0.803),
        Row("put", 0.5213, "ms (median)", 0.31, "sync + echo", 1.682, 0.52, 1.5, 12.25, 101.5, 80.25),
        Row("8 clients", 9000.0, "messages/s", 3000.0, "one client", 3.0),
        Row("memory of 5,000 idle connections", 66.0, "MB", 33.0, "without", 2.0),
    ]
    monkeypatch.setattr("oncemq.tools.bench.run", lambda *_: rows)
    result = run("bench")
    lines = [line.split("  ") for line in result.stdout.splitlines()]
    cells = [[cell.strip() for cell in line if cell] for line in lines]
    assert cells[1] == ["put_many", "3,210,988", "messages/s", "4,000,000", "bare encoder", "80%", *["-"] * 5]
    times = ["0.52", "1.50", "12.25", "101.50", "80.25"]
    assert cells[2] == ["put", "0.52", "ms (median)", "0.31", "sync + echo", "1.7 ×", *times]
    assert [cells[3][5], cells[4][5]] == ["3.0 ×", "2.0 ×"]
    assert "every put is synced (fdatasync) before it is acknowledged, disk " in result.stderr
    encoded = json.loads(run("bench", "--json").stdout)
    assert [row["case"] for row in encoded[:3]] == ["put_many", "put", "8 clients"]
    assert (encoded[1]["broker_us"], encoded[1]["client_us"]) == (101.5, 80.25)


def test_a_data_folder_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("serve", "--listen", "tcp://127.0.0.1:*", "--data", str(tmp_path / "file"))
    assert result.exit_code == 9
    assert "is a file" in result.stderr
    assert "permissions" in result.stderr


def test_a_socket_in_a_folder_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    result = run("serve", "--listen", f"ipc://{tmp_path}/nowhere/sock", "--data", str(tmp_path / "data"))
    assert result.exit_code == 1
    assert f"The folder {tmp_path}/nowhere does not exist" in result.stderr


@pytest.mark.parametrize("command", [("check",), ("export", "out")])
def test_a_folder_without_a_journal_stays_as_it_is(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    assert run("journal", command[0], "empty", *command[1:]).exit_code == 9
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_journal_that_can_only_be_read_is_checked_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with oncemq.connect(f"file:{tmp_path}/data") as client:
        client.put("orders", "one pizza", create=True)
    (tmp_path / "data/journal.lock").unlink()
    real_open = os.open

    def read_only(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError(13, "Permission denied", path)
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    result = run("journal", "check", f"{tmp_path}/data", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["problems"]) == (0, [])
    assert "Permission denied" in report["notes"][0]
    assert report["last_groups"][-1]["sequence"] == report["last_sequence"]
    result = run("serve", "--listen", "tcp://127.0.0.1:*", "--data", f"{tmp_path}/data")
    assert result.exit_code == 9
    assert "can't be written: Permission denied" in result.stderr
