"""`oncemq pipeline audit --pipeline`: its words and exit codes. What it judges, test_pipelines.py tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import oncemq.spark.audit.pipelines
from oncemq.cli.pipeline import audit
from oncemq.spark.audit.pipelines.report import BY_OFFSET, NOT_JUDGED, PipelineFinding, PipelineReport, PipelineResult
from tests.spark.pipeline.files import GOOD


def _result(**changes: Any) -> PipelineResult:
    whole: dict[str, Any] = {
        "pipeline": "totals",
        "target": "topic totals",
        "query_id": "q",
        "first_batch": 0,
        "last_planned": 2,
        "last_committed": 2,
        "messages": 10_000,
        "rows": 10_000,
        "shape": "each",
        "judged_by": BY_OFFSET,
    }
    return PipelineResult(**{**whole, **changes})


def _run(patch: pytest.MonkeyPatch, folder: Path, report: PipelineReport, *arguments: str) -> Result:
    @contextmanager
    def on_nothing(*_: object) -> Iterator[None]:
        yield None

    (folder / "totals.yaml").write_text(GOOD)
    patch.setattr(audit, "spark_session", on_nothing)
    patch.setattr(audit, "require_broker", lambda *_: None)
    patch.setattr(oncemq.spark.audit.pipelines, "audit_pipelines", lambda *_, **__: report)
    return CliRunner().invoke(audit.audit, ["--pipeline", str(folder / "totals.yaml"), *arguments])


def test_a_proof_is_a_sentence_and_exit_code_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = _run(monkeypatch, tmp_path, PipelineReport(pipelines=[_result()], findings=[]))
    assert (result.exit_code, result.stdout) == (
        0,
        "totals → topic totals: 10,000 messages in complete micro-batches, 10,000 rows, each once, by offset\n"
        "Nothing was lost or duplicated.\n",
    )


def test_faults_are_listed_and_the_exit_code_is_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    faulty = _result(rows=9_999, counts={"lost": 1, "missing_batch": 1})
    findings = [
        PipelineFinding(kind="lost", pipeline="totals", topic="orders", offset=41),
        PipelineFinding(kind="missing_batch", pipeline="totals", batch=2, detail="0 rows of 10 messages"),
    ]
    report = PipelineReport(pipelines=[faulty], findings=findings)
    result = _run(monkeypatch, tmp_path, report)
    assert result.exit_code == 1
    assert "9,999 rows, 1 LOST, 1 MICRO-BATCHES MISSING IN THE TARGET, compared by offset" in result.stdout
    assert "0 rows of 10 messages" in result.stdout
    assert result.stdout.endswith("NOT PROVED.\n")
    printed = _run(monkeypatch, tmp_path, report, "--json")
    lines = [json.loads(line) for line in printed.stdout.splitlines()]
    assert [line["of"] for line in lines] == ["pipeline", "finding", "finding", "audit"]
    assert (lines[0]["lost"], lines[1]["offset"], lines[2]["batch"], lines[3]["proved"]) == (1, 41, 2, False)


def test_rows_that_can_not_be_judged_are_not_called_proved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = PipelineReport(pipelines=[_result(judged_by=NOT_JUDGED, shape="other")], findings=[])
    result = _run(monkeypatch, tmp_path, report)
    assert result.exit_code == 0
    assert result.stdout.endswith("No fault was found. The rows of totals could not be judged.\n")
    assert not report.is_proved


def test_loss_that_can_not_be_judged_is_not_called_proved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = PipelineReport(pipelines=[_result(unjudged=("lost",), remarks=("on_loss is skip",))], findings=[])
    result = _run(monkeypatch, tmp_path, report)
    assert (result.exit_code, result.stdout) == (
        0,
        "totals → topic totals: 10,000 messages in complete micro-batches, 10,000 rows, each at most once, by offset "
        "(on_loss is skip)\nNo fault was found. Not all rows of totals could be judged.\n",
    )
    printed = _run(monkeypatch, tmp_path, report, "--json")
    lines = [json.loads(line) for line in printed.stdout.splitlines()]
    assert (lines[0]["unjudged"], lines[-1]["proved"]) == (["lost"], False)
    assert PipelineReport(pipelines=[_result(first_batch=7)], findings=[]).verdict.endswith(
        "the checkpoints still have."
    )


def test_options_of_the_other_audit_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = PipelineReport(pipelines=[_result()], findings=[])
    for option in ("--complete", "--broker"):
        assert _run(monkeypatch, tmp_path, report, option).exit_code == 2
    assert CliRunner().invoke(audit.audit, [str(tmp_path), "--offset-column", "at"]).exit_code == 2


def test_records_and_pipelines_are_two_audits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = _run(monkeypatch, tmp_path, PipelineReport(pipelines=[], findings=[]), str(tmp_path))
    assert result.exit_code == 2
    assert "either FOLDER" in result.output
    assert CliRunner().invoke(audit.audit, []).exit_code == 2
