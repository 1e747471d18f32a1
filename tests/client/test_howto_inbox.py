"""The how-to for the inbox runs as it stands."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

PAGE = Path(__file__).parents[2] / "docs/howto/inbox.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_every_block_runs_after_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", postgres)
    names: dict[str, Any] = {}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"block {number} of {PAGE.name}", "exec"), names)
    assert len(BLOCKS) >= 10
    said = capsys.readouterr().out
    assert "took over" in said
    assert "was set back" in said
    assert names["connection"].execute("select text from bills").fetchall()[-1] == ("wine",)
    names["connection"].close()
    with psycopg.connect(postgres) as connection:
        assert connection.execute("select amount from amounts").fetchall() == [(7,), (8,), (9,)]


def test_the_table_is_as_the_page_says(tmp_path: Path) -> None:
    from oncemq.client.inbox_database import Key, Row
    from oncemq.client.inbox_sqlite import SqliteInbox

    connection = sqlite3.connect(":memory:")
    SqliteInbox(connection, "oncemq_inbox").open_row(Key(1, "s", "t"), Row(1, 1, 0), lambda row: row)
    columns = [name for _, name, *_ in connection.execute("pragma table_info(oncemq_inbox)")]
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in columns if f"`{name}`" not in text] == []
