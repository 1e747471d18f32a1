"""Progress reports of a run: a bar on a terminal, lines in a log, JSON for programs.

A reporter is called for each micro-batch and at the end. The data comes from Spark's progress reports.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from oncemq.spark.source import offsets
from oncemq.spark.targets.declarations import OBSERVED_DEAD

#: The beginning of the names of the Spark metrics that count the rows which were read; the name of the view follows.
OBSERVED = "oncemq_messages_"
#: At most one line per second is printed, so that a log stays readable.
_LINE_INTERVAL_S = 1.0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A completed micro-batch."""

    number: int
    #: The number of messages that were read, from all sources.
    rows: int
    rows_per_s: float
    #: The number of messages that were stored and not yet read when it ended; None = not known.
    lag: int | None
    duration_ms: int
    #: The number of messages that went to a dead-letter topic.
    dead_letters: int = 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A completed run."""

    name: str
    batches: int
    rows: int
    duration_s: float
    lag: int | None
    #: It was stopped before it was complete.
    is_stopped: bool = False
    #: The number of messages that went to a dead-letter topic.
    dead_letters: int = 0


class Reporter(Protocol):
    def begin(self, name: str) -> None: ...

    def batch(self, batch: Batch) -> None: ...

    def notice(self, text: str) -> None:
        """Something that an operator should know, and that does not end the run."""

    def end(self, summary: Summary | None) -> None:
        """The run has ended. None: it failed."""


class SilentReporter:
    """Reports nothing."""

    def begin(self, name: str) -> None:
        del name

    def batch(self, batch: Batch) -> None:
        del batch

    def notice(self, text: str) -> None:
        del text

    def end(self, summary: Summary | None) -> None:
        del summary


class LineReporter:
    """A line per micro-batch, at most one per second, and a line at the end."""

    def __init__(self, print_line: Callable[[str], None], clock_s: Callable[[], float], *, prefix: str = "") -> None:
        """`prefix` begins the lines of a micro-batch, if several pipelines print lines."""
        self._print_line = print_line
        self._clock_s = clock_s
        self._prefix = prefix
        self._next_s = 0.0

    def begin(self, name: str) -> None:
        self._print_line(f"{name} is running.")

    def batch(self, batch: Batch) -> None:
        if self._clock_s() < self._next_s:
            return
        self._next_s = self._clock_s() + _LINE_INTERVAL_S
        self._print_line(f"{self._prefix}batch {batch.number}: {batch_text(batch)}")

    def notice(self, text: str) -> None:
        self._print_line(f"{self._prefix}{text}")

    def end(self, summary: Summary | None) -> None:
        if summary is not None:
            self._print_line(summary_text(summary))


class JsonReporter:
    """A JSON object per micro-batch, and one at the end. Each names the pipeline."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._pipeline: str | None = None

    def begin(self, name: str) -> None:
        self._pipeline = name

    def batch(self, batch: Batch) -> None:
        self._print("batch", msgspec.structs.asdict(batch))

    def notice(self, text: str) -> None:
        self._print("notice", {"text": text})

    def end(self, summary: Summary | None) -> None:
        if summary is not None:
            self._print("end", msgspec.structs.asdict(summary))

    def _print(self, event: str, fields: Mapping[str, Any]) -> None:
        self._write(_json({"event": event, "pipeline": self._pipeline, **fields}))


class BarReporter:
    """A progress bar on a terminal. It shows a percentage only for a run that ends."""

    def __init__(self, print_line: Callable[[str], None], *, has_end: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = [SpinnerColumn(), TextColumn("{task.description}")]
        columns += [BarColumn(), TextColumn("{task.percentage:>3.0f}%")] if has_end else []
        columns += [TextColumn("{task.fields[figures]}"), TimeElapsedColumn()]
        self._print_line = print_line
        self._has_end = has_end
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("", total=None, figures="starting")
        self._rows = 0

    def begin(self, name: str) -> None:
        self._progress.update(self._task, description=name, figures="waiting for the first batch")
        self._progress.start()

    def batch(self, batch: Batch) -> None:
        self._rows += batch.rows
        figures = f"batch {batch.number}: {batch_text(batch)}"
        total = self._rows + (batch.lag or 0) if self._has_end else None
        self._progress.update(self._task, completed=self._rows, total=total, figures=figures)

    def notice(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def end(self, summary: Summary | None) -> None:
        self._progress.stop()
        if summary is not None:
            self._print_line(summary_text(summary))


def batch_text(batch: Batch) -> str:
    lag = "" if batch.lag is None else f", {batch.lag:,} left"
    rows = f"{batch.rows:,} row" + ("" if batch.rows == 1 else "s")
    return f"{rows} in {batch.duration_ms / 1000:.1f} s ({batch.rows_per_s:,.0f} rows/s){_dead_text(batch)}{lag}"


def _dead_text(counted: Batch | Summary) -> str:
    count = counted.dead_letters
    return f", {count:,} dead letter{'' if count == 1 else 's'}" if count else ""


def summary_text(summary: Summary) -> str:
    """
    >>> summary_text(Summary(name="totals", batches=1, rows=1200, duration_s=2.04, lag=0))
    'totals is done: 1,200 rows in 1 batch, 2.0 s.'
    """
    how = "was stopped" if summary.is_stopped else "is done"
    rows = f"{summary.rows:,} row" + ("" if summary.rows == 1 else "s")
    batches = f"{summary.batches:,} batch" + ("" if summary.batches == 1 else "es")
    lag = f" {summary.lag:,} messages are left." if summary.lag else ""
    return f"{summary.name} {how}: {rows} in {batches}{_dead_text(summary)}, {summary.duration_s:.1f} s.{lag}"


def parse_progress(progress: Mapping[str, Any]) -> Batch:
    """Convert the JSON of Spark's StreamingQueryProgress."""
    observed = progress.get("observedMetrics") or {}
    rows = sum(int(metric.get("rows") or 0) for name, metric in observed.items() if name.startswith(OBSERVED))
    duration_ms = int((progress.get("durationMs") or {}).get("triggerExecution") or progress.get("batchDuration") or 0)
    return Batch(
        number=int(progress["batchId"]),
        rows=rows,
        rows_per_s=round(rows * 1000 / duration_ms, 1) if duration_ms else 0.0,
        lag=_lag(progress.get("sources") or []),
        duration_ms=duration_ms,
        dead_letters=int((observed.get(OBSERVED_DEAD) or {}).get("rows") or 0),
    )


def end_offsets(progress: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The ends of a micro-batch by the sources, as `SourceOptions.description` names them."""
    found = {}
    for source in progress.get("sources") or []:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if end is not None and latest is not None and "source" in latest:
            found[latest["source"]] = dict(end)
    return found


def _lag(sources: Sequence[Mapping[str, Any]]) -> int | None:
    """The lag of all sources together; None if that of one is not known."""
    lags = [_source_lag(source) for source in sources]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known and len(known) == len(lags) else None


def _source_lag(source: Mapping[str, Any]) -> int | None:
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if end is None or latest is None:
        return None
    return max(0, offsets.lag(offsets.parse_offsets(end), offsets.parse_offsets(latest)))


def _offsets(raw: Any) -> Mapping[str, Any] | None:
    """In Spark's JSON, the offset of a source is an object or a string."""
    if isinstance(raw, str):
        raw = json.loads(raw) if raw.startswith("{") else None
    return raw if isinstance(raw, Mapping) and "topics" in raw else None


def _json(fields: Mapping[str, Any]) -> str:
    return msgspec.json.encode(fields).decode()
