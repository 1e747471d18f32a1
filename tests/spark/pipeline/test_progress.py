"""How far a run is, for people and for programs. No Spark here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oncemq.spark.pipeline.progress import BarReporter, Batch, JsonReporter, LineReporter, Summary, parse_progress

SUMMARY = Summary(name="totals", batches=2, rows=1500, duration_s=3.25, lag=7, is_stopped=True)


def batch(number: int, rows: int = 1000, lag: int | None = 0) -> Batch:
    return Batch(number=number, rows=rows, rows_per_s=rows * 2.0, lag=lag, duration_ms=500)


def progress(end: Any, latest: Any) -> dict[str, Any]:
    return {
        "batchId": 3,
        "durationMs": {"triggerExecution": 250},
        "numInputRows": 0,
        "observedMetrics": {"oncemq_messages_messages": {"rows": 50}},
        "sources": [{"startOffset": None, "endOffset": end, "latestOffset": latest}],
    }


def offsets(**topics: int) -> dict[str, Any]:
    return {"broker": "b", "topics": {name: [1, offset] for name, offset in topics.items()}}


def test_a_batch_is_read_out_of_what_spark_says() -> None:
    found = parse_progress(progress(offsets(a=10, b=5), offsets(a=12, b=5)))
    assert found == Batch(number=3, rows=50, rows_per_s=200.0, lag=2, duration_ms=250)


@pytest.mark.parametrize(
    ("end", "latest", "lag"),
    [
        (json.dumps(offsets(a=1)), json.dumps(offsets(a=4)), 3),
        (offsets(a=1), offsets(a=1, b=6), 6),
        (offsets(a=5), offsets(a=4), 0),
        (None, offsets(a=4), None),
        (offsets(a=1), None, None),
        (offsets(a=1), "-", None),
    ],
)
def test_the_lag_is_what_is_stored_and_not_yet_taken(end: Any, latest: Any, lag: int | None) -> None:
    assert parse_progress(progress(end, latest)).lag == lag


def test_a_progress_without_anything_is_a_batch_of_nothing() -> None:
    assert parse_progress({"batchId": 0}) == Batch(number=0, rows=0, rows_per_s=0.0, lag=None, duration_ms=0)


def test_lines_come_once_a_second_and_at_the_end() -> None:
    lines: list[str] = []
    seconds = iter([0.0, 0.0, 0.5, 1.0, 1.0])
    reporter = LineReporter(lines.append, lambda: next(seconds))
    reporter.begin("totals")
    for number in range(3):
        reporter.batch(batch(number, lag=number))
    reporter.end(SUMMARY)
    assert lines == [
        "totals is running.",
        "batch 0: 1,000 rows in 0.5 s (2,000 rows/s), 0 left",
        "batch 2: 1,000 rows in 0.5 s (2,000 rows/s), 2 left",
        "totals was stopped: 1,500 rows in 2 batches, 3.2 s. 7 messages are left.",
    ]


def test_programs_get_an_object_for_each_batch_and_for_the_end() -> None:
    lines: list[str] = []
    reporter = JsonReporter(lines.append)
    reporter.begin("totals")
    reporter.batch(batch(0, lag=None))
    reporter.end(SUMMARY)
    assert [json.loads(line) for line in lines] == [
        {
            "event": "batch",
            "pipeline": "totals",
            "number": 0,
            "rows": 1000,
            "rows_per_s": 2000.0,
            "lag": None,
            "duration_ms": 500,
            "dead_letters": 0,
        },
        {
            "event": "end",
            "pipeline": "totals",
            "name": "totals",
            "batches": 2,
            "rows": 1500,
            "duration_s": 3.25,
            "lag": 7,
            "is_stopped": True,
            "dead_letters": 0,
        },
    ]


def test_a_run_that_failed_has_no_summary() -> None:
    lines: list[str] = []
    for reporter in (
        JsonReporter(lines.append),
        LineReporter(lines.append, lambda: 0.0),
        BarReporter(lines.append, has_end=True),
    ):
        reporter.end(None)
    assert lines == []


def test_the_bar_moves_towards_the_end_that_is_known() -> None:
    lines: list[str] = []
    bar = BarReporter(lines.append, has_end=True)
    bar.begin("totals")
    bar.batch(batch(0, rows=1000, lag=3000))
    [task] = bar._progress.tasks
    assert (task.completed, task.total, task.percentage) == (1000, 4000, 25.0)
    bar.batch(batch(1, rows=3000, lag=0))
    assert task.percentage == 100.0
    bar.end(SUMMARY)
    assert len(lines) == 1


def test_a_bar_without_an_end_has_none() -> None:
    bar = BarReporter(print, has_end=False)
    bar.batch(batch(0, lag=10))
    assert bar._progress.tasks[0].total is None
