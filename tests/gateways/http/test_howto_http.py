"""The guide to HTTP shows what a reader sees."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.forking import ForkedBroker
from tests.pages import HOWTO, sessions_of_page

GUIDE = HOWTO / "http.md"
#: The command by which the page ends a stream.
STREAMING = "--max-time 1"
#: Values that differ each time, and their placeholders on the page.
PLACEHOLDERS = [
    (r'("(?:time|uptime)_ms":)\d+', r"\1TIME"),
    (r'("(?:epoch|token|sessions)":)\d+', r"\1N"),
    (r"(oncemq-epoch: )\d+", r"\1N"),
    (r'("lease_ms":)\d+', r"\1MS"),
    (r'("topic_id":)[1-9]\d*', r"\1ID"),
    (r'("writable_bytes":)-?\d+', r"\1BYTES"),
    (r'("idempotency_key":")[0-9a-f]+-', r"\1ID-"),
    (r'("broker_id":")\w+', r"\1ID"),
    (r"(?m)^id: \d+-\d+", "id: ID-N"),
    (r'("version":")[^"]+', r"\1VERSION"),
    (r'("journal":")[^"]+', r"\1JOURNAL"),
    (r"(oncemq-time: )\d+", r"\1TIME"),
    (r"(oncemq-idempotency-key: )[0-9a-f]+-", r"\1ID-"),
    (r"(http://127\.0\.0\.1:)\d+", r"\g<1>8002"),
    (r"\r\n", "\n"),
]


def outputs(folder: Path) -> Iterator[tuple[str, str]]:
    """Run each command, and compare its output with placeholders."""
    with ForkedBroker(folder / "data", http=True) as broker:
        broker.wait_until_http()
        shell = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "no_proxy": "*"},
        )
        assert shell.stdin is not None
        assert shell.stdout is not None
        with shell:
            for command, expected in sessions_of_page(GUIDE):
                real = command.replace("http://127.0.0.1:8002", broker.http_url)
                said = _said(shell, "" if command == "oncemq serve &" else real)
                for seconds in (2, 4, 8, 16) if STREAMING in command else ():
                    if said != expected:
                        # On a busy machine a stream may start late; it is safe to read it again.
                        said = _said(shell, real.replace(STREAMING, f"--max-time {seconds}"))
                yield command, said
            shell.stdin.close()


def _said(shell: subprocess.Popen[str], command: str) -> str:
    """Run a command in one shell, which keeps its variables for the next one."""
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write(f"{command}\necho; echo the end of it\n")
    shell.stdin.flush()
    lines = []
    while (line := shell.stdout.readline()) not in ("the end of it\n", ""):
        lines.append(line)
    said = "".join(lines).rstrip("\n")
    for pattern, instead in PLACEHOLDERS:
        said = re.sub(pattern, instead, said)
    return said + "\n" if said else ""


def test_every_command_answers_as_shown(tmp_path: Path) -> None:
    for (command, said), (_, expected) in zip(outputs(tmp_path), sessions_of_page(GUIDE), strict=True):
        assert said == expected, command
