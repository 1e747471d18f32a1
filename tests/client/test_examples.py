"""The examples run and say what they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_first_message_arrives(tmp_path: Path) -> None:
    said = run("first_message.py", f"file:{tmp_path}/data")
    assert said == "stored at offset 0, for 1 subscription\none pizza, for b'table-7'\n"


def test_lines_are_copied_whole(tmp_path: Path) -> None:
    source = tmp_path / "source.txt"
    source.write_bytes(b"".join(b"line %d\n" % number for number in range(20_000)))
    said = run("copy_lines.py", str(source))
    assert said.endswith("20000 lines\n")
    assert source.with_suffix(".copy").read_bytes() == source.read_bytes()
