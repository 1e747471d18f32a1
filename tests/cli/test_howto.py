"""The guide to the command line shows what a reader sees."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.forking import ForkedBroker

GUIDE = Path(__file__).parents[2] / "docs/howto/command-line.md"
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def sessions() -> list[tuple[str, str]]:
    """(command, expected output) pairs of all console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    parts = re.split(r"^\$ (.*)\n", "".join(blocks), flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def test_every_command_answers_as_shown(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path / "data") as broker:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "ONCEMQ_URL": broker.url}
        code = 0
        for command, expected in sessions():
            if command == "oncemq serve &":
                continue
            script = f"(exit {code}); {command}"
            done = subprocess.run(
                ["bash", "-c", script],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
                cwd=tmp_path,
                check=False,
            )
            code = done.returncode
            assert MOMENT.sub("TIME", done.stdout) == MOMENT.sub("TIME", expected), command
