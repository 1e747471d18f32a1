"""`oncemq pipeline stats`: the table, the JSON and the page show the same figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import oncemq.spark.stats
from oncemq.cli.pipeline import stats
from oncemq.spark.stats.model import Stats
from tests.spark.stats.test_report import Tags, some_stats


def _run(patch: pytest.MonkeyPatch, *arguments: str) -> tuple[Result, list[Any]]:
    selections: list[Any] = []

    @contextmanager
    def on_nothing(*_: object) -> Iterator[None]:
        yield None

    def collect(_spark: object, _broker: object, selection: Any, **_: object) -> Any:
        selections.append(selection)
        return some_stats(recorded=True)

    patch.setattr(stats, "spark_session", on_nothing)
    patch.setattr(stats, "require_broker", lambda *_: None)
    patch.setattr(oncemq.spark.stats, "collect_stats", collect)
    return CliRunner().invoke(stats.stats, arguments), selections


def test_table_json_and_page_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, _ = _run(monkeypatch, "orders", "--to", str(tmp_path / "page.html"))
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["1,000", "19.5", "KiB", "20.0", "40", "90", "99"] in [row[-7:] for row in rows]
    assert [row[-7:] for row in rows].count(["100", "7", "ms", "35", "ms", "9,000", "ms"]) == 2
    page = Tags()
    page.feed((tmp_path / "page.html").read_text())
    figures = "|".join(page.texts)
    assert "1,000|19.5 KiB|20.0|40 B|90 B|99 B" in figures
    assert figures.count("100|7 ms|35 ms|9 s") == 2
    printed, _ = _run(monkeypatch, "orders", "--json")
    assert msgspec.json.decode(printed.stdout, type=Stats) == some_stats(recorded=True)


def test_times_and_topics_select(monkeypatch: pytest.MonkeyPatch) -> None:
    _, (selection,) = _run(monkeypatch, "shop.#", "--since", "2026-01-01T00:00:00Z", "--until", "2026-01-02T00:00:00Z")
    assert selection.source_options == {
        "pattern": "shop.#",
        "startingOffsets": "2026-01-01T00:00:00+00:00",
        "endingOffsets": "2026-01-02T00:00:00+00:00",
    }
    for arguments in (["a", "b.*"], ["a", "--since", "soon"], ["a", "--since", "-1h", "--until", "-2h"]):
        assert _run(monkeypatch, *arguments)[0].exit_code == 2
