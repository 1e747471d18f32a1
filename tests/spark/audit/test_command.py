"""`oncemq pipeline audit`: its words and exit codes. What it judges, test_audit.py tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import oncemq.spark.audit
from oncemq.cli.pipeline import audit
from oncemq.spark.audit import Finding, Report, SubscriptionResult, TopicResult

_WHOLE = {"files": 3, "lines": 1234, "torn": 1, "unreadable": 0, "incomplete": 0, "in_doubt": 0}
_TOPIC = TopicResult(broker="b", topic="orders", topic_id=7, put=10_000)


def _subscription(**counts: Any) -> SubscriptionResult:
    return SubscriptionResult(broker="b", topic="orders", topic_id=7, subscriber="billing", put=10_000, **counts)


def _report(*findings: Finding, **changes: Any) -> Report:
    lost = sum(finding.kind == "lost" for finding in findings)
    billing = _subscription(consumed=10_000 - lost, lost=lost)
    return Report(**{**_WHOLE, **changes}, topics=[_TOPIC], subscriptions=[billing], findings=list(findings))


def _run(patch: pytest.MonkeyPatch, report: Report, folder: Path, *arguments: str) -> Result:
    @contextmanager
    def on_nothing(*_: object) -> Iterator[None]:
        yield None

    patch.setattr(audit, "spark_session", on_nothing)
    patch.setattr(oncemq.spark.audit, "audit", lambda *_, **__: report)
    return CliRunner().invoke(audit.audit, [str(folder), *arguments])


def test_a_proof_is_a_sentence_and_exit_code_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = _run(monkeypatch, _report(), tmp_path)
    assert result.exit_code == 0
    assert "orders / billing: 10,000 put, 10,000 consumed once, in order\n" in result.output
    assert "Nothing was lost, duplicated or out of order." in result.output


def test_what_is_lost_is_named_and_the_exit_code_is_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lost = Finding("lost", "b", "orders", 7, 41, "billing")
    result = _run(monkeypatch, _report(lost), tmp_path)
    assert result.exit_code == 1
    assert "orders / billing: 10,000 put, 9,999 consumed, 1 LOST" in result.output
    assert "lost   orders  billing         41" in result.output


@pytest.mark.parametrize("fault", ["unreadable", "incomplete"])
def test_records_that_are_not_whole_prove_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str) -> None:
    result = _run(monkeypatch, _report(**{fault: 2}), tmp_path)
    assert result.exit_code == 1
    assert "NOT PROVED: 2" in result.output


def test_json_has_a_line_for_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lost = Finding("lost", "b", "orders", 7, 41, "billing")
    result = _run(monkeypatch, _report(lost), tmp_path, "--json")
    lines = [json.loads(line) for line in result.output.splitlines()]
    assert [line["of"] for line in lines] == ["topic", "subscription", "finding", "audit"]
    assert (lines[1]["lost"], lines[2]["offset"], lines[3]["proved"]) == (1, 41, False)


def test_findings_are_not_written_over_something_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = _run(monkeypatch, _report(), tmp_path, "--findings", str(tmp_path))
    assert "exists" in str(result.exception)
