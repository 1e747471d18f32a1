"""The commands and examples of the README have the output that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.forking import ForkedBroker
from tests.gateways.http.test_howto_http import PLACEHOLDERS
from tests.pages import ROOT, blocks_of, read, sessions_of


def blocks(kind: str) -> list[str]:
    return [block.text for block in blocks_of(read(ROOT / "README.md")) if block.kind == kind]


def shown(said: str) -> str:
    """Return output with the placeholders of the page."""
    for pattern, placeholder in PLACEHOLDERS:
        said = re.sub(pattern, placeholder, said)
    return said


def test_the_first_messages_and_the_python_example_go_as_shown(tmp_path: Path) -> None:
    [block] = [block for block in blocks("console") if "oncemq sub orders kitchen\nSubscribed" in block]
    [example], [printed] = blocks("python"), blocks("text")
    with ForkedBroker(tmp_path / "data") as broker:
        folder = Path(sys.executable).parent
        environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "ONCEMQ_URL": broker.url}
        for command, expected in sessions_of(block):
            done = subprocess.run(
                ["bash", "-c", command], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
            )
            assert done.stdout + done.stderr == expected, command
        program = example.replace("oncemq://127.0.0.1:5554", broker.url)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.sub(r"(?m)\b[0-9a-f]+(-\d+)$", r"ID\1", done.stdout) == printed


def test_the_first_requests_over_http_go_as_shown(tmp_path: Path) -> None:
    [block] = [block for block in blocks("console") if "$ curl -s -X PUT" in block]
    with ForkedBroker(tmp_path / "data", http=True) as broker:
        broker.wait_until_http()
        for command, expected in sessions_of(block):
            real = command.replace("localhost:8002", broker.http_url)
            done = subprocess.run(["bash", "-c", real], capture_output=True, text=True, check=True)
            assert shown(done.stdout) + "\n" == expected, command
