"""Pages of the documentation, as tests run them: commands and programs, with the output that a reader sees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
HOWTO = ROOT / "docs/howto"

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: A command, and the further lines of it.
_COMMAND = re.compile(r"^\$ (.*\n(?:>.*\n)*)", re.MULTILINE)


class Block(NamedTuple):
    kind: str
    text: str


class Session(NamedTuple):
    command: str
    #: What it prints.
    expected: str


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks_of(page: str) -> Iterator[Block]:
    return (Block(*found) for found in _BLOCK.findall(page))


def sessions_of(block: str) -> list[Session]:
    """The commands of a console block, or of several."""
    parts = _COMMAND.split(block)[1:]
    commands = [re.sub(r"^> ?", "", command, flags=re.MULTILINE).rstrip("\n") for command in parts[::2]]
    return [Session(*each) for each in zip(commands, parts[1::2], strict=True)]


def sessions_of_page(path: Path) -> list[Session]:
    """The commands of all console blocks of a page."""
    return sessions_of("".join(block.text for block in blocks_of(read(path)) if block.kind == "console"))
