"""Watches the streaming query of a run, reports its micro-batches, and knows where each source has arrived."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oncemq.spark.pipeline.progress import Reporter, Summary, end_offsets, parse_progress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class ProgressWatcher:
    """Calls the reporter for each micro-batch once. A run that is continued has a second query, with one watcher."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._last_key = ("", -1)
        self._batches = 0
        self._rows = 0
        self._dead_letters = 0
        self._lag: int | None = None
        #: The number of progress reports, of micro-batches and of triggers without new messages.
        self.reports = 0
        #: The ends of the last micro-batch by the sources.
        self.end_offsets: dict[str, dict[str, Any]] = {}

    def poll(self, query: StreamingQuery) -> None:
        last = query.lastProgress
        if last is None or _key(last) == self._last_key:
            return
        recent = [progress for progress in query.recentProgress if _key(progress) > self._last_key]
        for progress in recent:
            self._last_key = _key(progress)
            self._report(json.loads(progress.json))

    def _report(self, progress: Mapping[str, Any]) -> None:
        batch = parse_progress(progress)
        self.reports += 1
        self.end_offsets = end_offsets(progress)
        self._lag = batch.lag
        if batch.rows:
            self._batches += 1
            self._rows += batch.rows
            self._dead_letters += batch.dead_letters
            self._reporter.batch(batch)

    def summary(self, name: str, duration_s: float, is_stopped: bool) -> Summary:
        return Summary(
            name=name,
            batches=self._batches,
            rows=self._rows,
            duration_s=round(duration_s, 3),
            lag=self._lag,
            is_stopped=is_stopped,
            dead_letters=self._dead_letters,
        )


def _key(progress: Any) -> tuple[str, int]:
    """Increases with each report, even if a micro-batch without rows has the number of the previous one."""
    return progress.timestamp, progress.batchId
