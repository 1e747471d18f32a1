"""`oncemq shell`: from a pipe, at a terminal, and through a restart of the broker."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

import oncemq
from oncemq.cli.main import cli
from oncemq.testing.broker_process import BrokerProcess
from oncemq.tools.shell.lines import VERBS, Completion, Line, SyntaxProblem, complete, parse
from oncemq.tools.shell.plain import PlainDisplay
from oncemq.tools.shell.prompt import ShellCompleter, history_in, interact, prompt_of
from oncemq.tools.shell.roles import Publisher
from oncemq.tools.shell.session import IDLE_S, Session
from tests.cli.shell import TIMEOUT_S, Shell
from tests.forking import Forked

ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


# Lines.


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("put orders one  pizza\n", Line("put", "orders", "one  pizza")),
        ("publish orders x", Line("put", "orders", "x")),
        ('put "Cooking Recipes" "two salads"', Line("put", "Cooking Recipes", "two salads")),
        ('put orders say "cheese"', Line("put", "orders", 'say "cheese"')),
        ("  sub 'a b' ", Line("sub", "a b")),
        ("list", Line("list", "topics")),
        ("list subs", Line("list", "subs")),
        ("quit", Line("quit")),
        ("  \n", None),
    ],
)
def test_a_line_is_understood(text: str, line: Line | None) -> None:
    assert parse(text) == line


@pytest.mark.parametrize(
    "text", ["fetch x", "sub", "sub a b", 'sub "a', 'sub "a"b', "put orders", "list all", "help me", "list topics x"]
)
def test_a_line_that_is_not_a_command_is_refused(text: str) -> None:
    with pytest.raises(SyntaxProblem):
        parse(text)


def test_commands_and_topics_are_completed() -> None:
    def topics() -> list[str]:
        return ["orders", "Cooking Recipes"]

    assert [found.text for found in complete("", topics)] == list(VERBS)
    assert complete("un", topics) == [Completion("unsub", 2, VERBS["unsub"][1])]
    assert complete("list t", topics) == [Completion("topics", 1)]
    assert complete("put o", topics) == [Completion("orders", 1)]
    assert complete('sub "Co', topics) == [Completion('"Cooking Recipes"', 3)]
    assert complete("put orders o", topics) == []
    assert complete("quit o", topics) == []


def test_the_list_of_topics_is_cached() -> None:
    asked = []
    completer = ShellCompleter(lambda: asked.append(1) or ["orders"])  # type: ignore[func-returns-value]
    for text in ("sub o", "sub or"):
        [found] = completer.get_completions(Document(text), None)  # type: ignore[arg-type]
        assert found.text == "orders"
    assert len(asked) == 1


# From a pipe.


def test_a_piped_session_answers_each_line_and_shows_each_message(shell: Shell) -> None:
    lines = (
        'sub "{0}"',
        'put "{0}" one  pizza',
        "publish '{0}' \"two salads\"",
        'get "{0}"',
        'unsub "{0}"',
        'create "{0}"',
        'put "{0}" x',
        "quit",
        "never read",
    )
    said = shell.ok("shell", stdin="\n".join(lines).format(shell.topic).encode())
    assert said.decode().splitlines() == [
        f"Subscribed to {shell.topic}.",
        "Stored at offset 0, for 1 subscription.",
        f"{shell.topic}: one  pizza",
        "Stored at offset 1, for 1 subscription.",
        f"{shell.topic}: two salads",
        f"The messages of {shell.topic} are shown as they arrive.",
        f"Unsubscribed from {shell.topic}.",
        f"Created {shell.topic}.",
        f"{shell.topic} has no subscription: the message is kept only if the topic has a retention.",
    ]


def test_the_exit_code_is_that_of_the_first_line_that_failed(shell: Shell) -> None:
    done = shell.run("shell", stdin=b"put nowhere x\nfetch\nlist subs\n")
    assert done.returncode == 5
    assert done.stderr.decode().splitlines() == [
        "error: there is no topic 'nowhere'",
        "       `sub` or `create` creates it; `list topics` lists the topics.",
        "error: 'fetch' is not a command; `help` lists them",
    ]
    assert done.stdout.endswith(b"has no subscriptions.\n")


def test_subscriptions_are_permanent_only_with_a_name(shell: Shell) -> None:
    sub, put = f'sub "{shell.topic}"\n'.encode(), f'put "{shell.topic}" hello\n'.encode()
    shell.ok("shell", "--as", "alice", stdin=sub + put)
    shell.ok("shell", stdin=sub)
    assert b"name" in shell.run("shell", "--as", "", stdin=sub).stderr
    assert shell.subscription()["subscriber"] == "alice"
    shell.ok("put", shell.topic, "first")
    shell.ok("put", shell.topic, "second")
    said = shell.ok("shell", "--as", "alice", stdin=f'get "{shell.topic}"\n'.encode() + sub)
    assert said.decode().splitlines() == [
        f"{shell.topic}: first",
        f"alice continues in {shell.topic} at its position.",
        f"{shell.topic}: second",
    ]
    assert shell.run("shell", "--as", "alice", stdin=f'get "{shell.topic}"\n'.encode()).returncode == 3


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_shell_without_a_name_that_loses_its_terminal_deletes_its_subscriptions(
    shell: Shell, number: signal.Signals
) -> None:
    reading, writing = os.pipe()
    process = Forked.with_pipes(["shell"], shell.environment, reading)
    os.close(reading)
    shell.started.append(process)
    shell.ok("topics", "create", shell.topic)
    os.write(writing, f'sub "{shell.topic}"\n'.encode())
    assert process.stdout is not None
    # A signal while the shell waits for the broker leaves the rest to the limit of idle time.
    assert process.stdout.readline().startswith(b"Subscribed")
    assert len(shell.objects("subs", shell.topic)) == 1
    process.send_signal(number)
    assert process.wait(TIMEOUT_S) == 143
    os.close(writing)
    assert shell.objects("subs", shell.topic) == []


def test_a_killed_shell_without_a_name_leaves_nothing_that_is_kept_for_ever() -> None:
    """The broker deletes the subscriptions of a shell that could not do it."""
    with oncemq.connect("memory:shell") as client:
        client.create_topic("orders")
        for name, permanent in (("alice", True), ("a1b2", False)):
            session = Session(client, name, PlainDisplay(), permanent=permanent)
            session.subscribe("orders")
            session.subscribe("#")
        kept = {"alice": (0.0, "kept"), "a1b2": (IDLE_S, "deleted when its owner is idle for 3600000 ms")}
        for name, (idle_s, what) in kept.items():
            for topic in ("orders", "#"):
                subscribe = client.subscribe_pattern if topic == "#" else client.subscribe
                assert not subscribe(topic, name, idle_s=idle_s).created
                with pytest.raises(oncemq.SubscriptionExists, match=what):
                    subscribe(topic, name, idle_s=7200.0)


def test_values_that_are_not_text_are_passed_as_they_are(shell: Shell) -> None:
    topic = shell.topic.encode()
    assert shell.ok("shell", stdin=b'sub "%b"\nput "%b" \xff\x00\n' % (topic, topic)).endswith(topic + b": \xff\x00\n")


def test_a_pipe_needs_no_extra_and_a_terminal_names_it(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    run = CliRunner().invoke(cli, ["shell", "--url", broker.url], input="list subs\n")
    assert run.exit_code == 0, run.output
    monkeypatch.setattr("oncemq.cli.messages.shell.is_terminal", lambda _: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    run = CliRunner().invoke(cli, ["shell", "--url", broker.url])
    assert run.exit_code == 2
    assert "pip install 'oncemq[shell]'" in run.stderr


# The roles.


def test_the_roles_have_their_own_answers(shell: Shell) -> None:
    topic = shell.topic
    published = shell.ok("shell", "--role", "publisher", stdin=f'"{topic}"\n"{topic}" dropped\n\nquit\n'.encode())
    assert published.decode() == "Acknowledged!\nAcknowledged!\n"
    lines = ("list topics", "sub '{0}'", "sub '{0}'", "sub nowhere", "unsub '{0}'", "unsub '{0}'", "subscribe")
    done = shell.run("shell", "--role", "subscriber", stdin="\n".join(lines).format(topic).encode())
    listed, *others = done.stdout.decode().splitlines()
    assert listed.startswith("[")
    assert topic in listed
    assert others == [
        f"Subscribed to {topic}!",
        "Already subscribed to topic.",
        "Topic does not exist.",
        "Unsubscribed!",
        "You are not currently subscribed to this topic.",
    ]
    assert done.returncode == 4
    assert b"sub <topic>, unsub <topic>, list topics" in done.stderr


# At a terminal.


class Terminal:
    """A shell at a terminal of its own."""

    def __init__(self, url: str, *arguments: str) -> None:
        self._master, its_end = pty.openpty()
        environment = {**os.environ, "ONCEMQ_URL": url, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}
        self.process = Forked(["shell", *arguments], environment, (its_end, its_end, its_end))
        os.close(its_end)
        self._seen = b""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, words: str) -> str:
        """Return the output up to and including these words."""
        until_s = time.monotonic() + TIMEOUT_S
        while words.encode() not in (plain := ESCAPES.sub(b"", self._seen)):
            assert time.monotonic() < until_s, plain.decode()
            if select.select([self._master], [], [], 0.1)[0]:
                self._seen += os.read(self._master, 65536)
        shown, self._seen = plain.partition(words.encode())[0], plain.partition(words.encode())[2]
        return shown.decode() + words

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_a_terminal_shows_messages_above_the_prompt_through_a_restart_of_the_broker(
    broker_process: BrokerProcess, terminals: list[Terminal]
) -> None:
    broker_process.start()
    terminal = Terminal(broker_process.url, "--as", "alice")
    terminals.append(terminal)
    assert "put TOPIC MESSAGE" in terminal.until("oncemq>")
    terminal.type("sub orders\r")
    terminal.until("Subscribed to orders.")
    with broker_process.connect() as client:
        client.put("orders", b"one \x1b[31mpizza")
        terminal.until(r"orders: one \x1b[31mpizza")
        broker_process.restart()
        client.put("orders", "two salads")
        terminal.until("orders: two salads")
    terminal.until("oncemq>")
    terminal.type("put orders three\r")
    terminal.until("orders: three")
    terminal.until("oncemq>")
    terminal.type("\x04")
    assert terminal.process.wait(TIMEOUT_S) == 0
    kept = Path(os.environ["XDG_STATE_HOME"]) / "oncemq/shell-history"
    lines = [line for line in kept.read_text().splitlines() if line.startswith("+")]
    assert lines == ["+sub orders", "+put orders three"]
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_terminal_that_is_closed_leaves_no_subscription(broker_process: BrokerProcess) -> None:
    broker_process.start()
    terminal = Terminal(broker_process.url)
    terminal.until("oncemq>")
    terminal.type("sub orders\r")
    terminal.until("Subscribed to orders.")
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.process.wait(TIMEOUT_S) == 143
    terminal.close()
    with broker_process.connect() as client:
        assert client.subscriptions() == []


def test_the_publishers_prompt_is_the_one_people_know(broker: BrokerProcess, terminals: list[Terminal]) -> None:
    assert Publisher.prompt == "Enter a topic and a message to publish: "
    terminal = Terminal(broker.url, "--role", "publisher")
    terminals.append(terminal)
    assert "Type <topic> <message> to publish" in terminal.until(Publisher.prompt.rstrip())
    terminal.type("weather sunny\r")
    terminal.until("Acknowledged!")
    terminal.until(Publisher.prompt.rstrip())
    terminal.type("quit\r")
    assert terminal.process.wait(TIMEOUT_S) == 0


class Typed(Session):
    """A session that only records its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def greet(self) -> None:
        pass

    def close(self) -> None:
        pass

    def topics(self) -> list[str]:
        return ["orders"]

    def execute(self, text: str) -> bool:
        self.lines.append(text)
        return text != "quit"


def typed(keys: str, former: Sequence[str] = ()) -> list[str]:
    session, history = Typed(), InMemoryHistory(list(former))
    with create_pipe_input() as source:
        source.send_text(keys)
        asyncio.run(interact(lambda _: session, history, source=source, output=DummyOutput()))
    return session.lines


def test_tab_completes_at_the_prompt() -> None:
    async def complete_and_enter() -> str:
        with create_pipe_input() as source:
            prompting = prompt_of(Typed(), InMemoryHistory(), source, DummyOutput())
            line = asyncio.create_task(prompting.prompt_async())
            for keys, completed in (("pu\t", "put"), (" o\t", "put orders")):
                source.send_text(keys)
                until_s = time.monotonic() + TIMEOUT_S
                while prompting.default_buffer.text != completed:
                    assert time.monotonic() < until_s, prompting.default_buffer.text
                    await asyncio.sleep(0.005)
            source.send_text(" x\r")
            return await line

    assert asyncio.run(complete_and_enter()) == "put orders x"


def test_the_history_has_lines_of_earlier_sessions() -> None:
    assert typed("\x1b[A\rquit\r", ["put orders x"]) == ["put orders x", "quit"]


def test_ctrl_c_drops_the_line_and_ctrl_d_leaves() -> None:
    assert typed("put ord\x03help\r\x04") == ["help"]


def test_the_shell_works_without_a_history_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert isinstance(history_in(tmp_path / "file"), InMemoryHistory)
