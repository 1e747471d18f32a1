"""What commands print to a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest

from tests.cli.shell import COMMAND, TIMEOUT_S, Shell

#: A name that is valid, and would change how the rest of its line is read.
REVERSING = "\u202egnp.exe"


def on_terminal(shell: Shell, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run a command whose standard output is a terminal, and return what it printed."""
    terminal, output = pty.openpty()
    try:
        done = subprocess.run(
            [*COMMAND, *arguments], env=shell.environment, stdout=output, input=stdin, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0
        return os.read(terminal, 10_000)
    finally:
        os.close(output)
        os.close(terminal)


@pytest.mark.parametrize("options", [[], ["--format", "{key} {value}"], ["--json"]])
@pytest.mark.parametrize("command", ["get", "listen", "tail"])
def test_messages_do_not_control_the_terminal(shell: Shell, command: str, options: list[str]) -> None:
    shell.ok("sub", shell.topic, "reader")
    shell.ok("put", shell.topic, "\x1b[31mred\x1b[0m", "--key", "\x1b]0;title\x07")
    reader = [] if command == "tail" else ["reader"]
    more = {"tail": ["--no-follow"], "listen": ["--count", "1"], "get": []}[command]
    shown = on_terminal(shell, command, shell.topic, *reader, *more, *options)
    assert b"[31mred" in shown
    assert b"\x1b" not in shown
    assert b"\x07" not in shown


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_names_do_not_control_the_terminal(shell: Shell, options: list[str]) -> None:
    shell.ok("sub", REVERSING, "reader")
    try:
        shown = on_terminal(shell, "topics", *options).decode()
        assert "\\u202egnp.exe" in shown
        assert "\u202e" not in shown
    finally:
        shell.ok("unsub", REVERSING, "reader")


def test_a_shell_that_reads_from_a_pipe_does_not_control_the_terminal(shell: Shell) -> None:
    topic = f"{REVERSING} {shell.topic}"
    shell.ok("sub", topic, "reader")
    shell.ok("put", topic, "\x1b[31mred")
    commands = f'list subs\nsub "{topic}"\nget "{topic}"\n'.encode()
    shown = on_terminal(shell, "shell", "--as", "reader", stdin=commands).decode()
    assert "\\u202egnp.exe" in shown
    assert "\\x1b[31mred" in shown
    assert "\u202e" not in shown
    assert "\x1b" not in shown
