"""The how-to for Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import oncemq

PAGE = Path(__file__).parents[2] / "docs/howto/python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_every_block_runs_after_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oncemq_embedded: oncemq.Client
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"block {number} of {PAGE.name}", "exec"), names)
    # The last block is a test itself.
    names["test_an_order_arrives"](oncemq_embedded)
    assert len(BLOCKS) >= 10


def test_the_options_of_connect_are_all_told() -> None:
    text = PAGE.read_text(encoding="utf-8")
    options = oncemq.connect.__kwdefaults__
    assert options
    assert [name for name in options if f"`{name}`" not in text] == []
