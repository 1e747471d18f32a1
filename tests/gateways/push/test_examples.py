"""The examples in plain pyzmq run, and print what they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.acceptance.processes import wait_until
from tests.gateways.push.processes import GatewayProcess

EXAMPLES = Path(__file__).parents[3] / "examples" / "push"
DEADLINE_S = 60


def start(folder: Path, name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    return out


def test_the_examples_find_each_other(push: GatewayProcess, tmp_path: Path) -> None:
    settings = push.settings
    feed, acks = f"--feed={settings.feed}", f"--acks={settings.acks}"
    listener = start(tmp_path, "listener", "example", feed, "--count=3")
    reliable = start(tmp_path, "reliable_subscriber", "kitchen", "example", feed, acks, "--count=3")
    for process in (listener, reliable):
        assert process.stdout is not None
        assert process.stdout.readline().strip() in ("listening from offset 0", "welcome, at offset 0")
    assert said(start(tmp_path, "publisher", "example", "one pizza", "soup", acks)) == (
        "stored: example 0\nstored: example 1\n"
    )
    said(start(tmp_path, "plain_publisher", "example", "bread", f"--publish={settings.publish}"))
    expected = "0: one pizza\n1: soup\n2: bread\n"
    assert said(listener) == expected
    assert said(reliable) == expected
    wait_until((tmp_path / "kitchen-example.position.json").exists, "its position is kept")
