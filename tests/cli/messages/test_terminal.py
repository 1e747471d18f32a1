"""What commands print to a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest

from tests.cli.shell import COMMAND, TIMEOUT_S, Shell


def on_terminal(shell: Shell, *arguments: str) -> bytes:
    """Run a command whose standard output is a terminal, and return what it printed."""
    terminal, output = pty.openpty()
    try:
        process = subprocess.Popen([*COMMAND, *arguments], env=shell.environment, stdout=output)
        assert process.wait(TIMEOUT_S) == 0
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
