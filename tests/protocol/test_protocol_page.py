"""docs/protocol.md lists every command and reply with its fields in order."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from oncemq.protocol import commands, replies

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "protocol.md").read_text()


def rows(head: str) -> dict[str, list[str]]:
    """Return tag → fields of the table with this heading."""
    table = PAGE.split(head, 1)[1].split("\n\n", 1)[0]
    found = {}
    for tag, fields in re.findall(r"^\| `(\w+)`[^|]*\|([^|]*)\|", table, re.MULTILINE):
        found[tag] = [part.split("=")[0].strip() for part in fields.split(",") if part.strip()]
    return found


def structs_of(union: Any) -> dict[str, list[str]]:
    return {
        str(info.tag): [field.name for field in info.fields]
        for info in (msgspec.inspect.type_info(kind) for kind in get_args(union))
        if isinstance(info, msgspec.inspect.StructType)
    }


@pytest.mark.parametrize(
    ("head", "union"),
    [
        ("| tag | fields | reply |", commands.Command),
        ("| operation | fields | reply |", commands.Operation),
        ("| tag | fields |\n", replies.Reply),
    ],
)
def test_the_page_has_every_struct(head: str, union: Any) -> None:
    assert rows(head) == structs_of(union)


def shown_vectors() -> dict[str, list[str]]:
    """Return name → frames of the last code block of the page."""
    found: dict[str, list[str]] = {}
    for line in PAGE.split("## Test vectors", 1)[1].split("```")[1].strip().splitlines():
        if not line.startswith("  "):
            frames = found[line.split(" · ", 1)[1]] = []
        elif line.startswith("  | "):
            frames.append(line.removeprefix("  | "))
        else:
            frames[-1] += line.strip()
    return found


def test_the_page_shows_vectors_that_are_true() -> None:
    vectors = json.loads((ROOT / "tests" / "protocol" / "vectors.json").read_text())
    known = {
        entry["what"]: [entry["hex"]] if "hex" in entry else entry["frames"]
        for kind in ("batches", "typed_batches", "requests", "replies", "openings", "messages")
        for entry in vectors[kind]
    }
    assert shown_vectors()
    for what, frames in shown_vectors().items():
        assert frames == known[what], what
