"""Reports the progress of a batch job of Spark by its tasks, each of which has a known number of rows."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING

from oncemq.spark.pipeline.progress import Batch, Reporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S = 0.5


@contextmanager
def report_progress(spark: SparkSession, name: str, rows: Sequence[int], reporter: Reporter) -> Iterator[None]:
    """Inside, the progress of this thread's jobs is reported. `rows` are the rows of each task; they count when the
    task has ended."""
    group = str(uuid.uuid4())
    spark.sparkContext.setJobGroup(group, name)
    is_ended = threading.Event()
    poller = threading.Thread(target=_poll, args=(spark, group, rows, reporter, is_ended), daemon=True)
    reporter.begin(name)
    poller.start()
    try:
        yield
    finally:
        is_ended.set()
        poller.join()
        reporter.end(None)


def _poll(spark: SparkSession, group: str, rows: Sequence[int], reporter: Reporter, is_ended: threading.Event) -> None:
    done_rows = [0, *accumulate(rows)]
    tasks, at_s = 0, time.monotonic()
    while not is_ended.wait(_POLL_S):
        done = min(_done_tasks(spark, group), len(rows))
        if done > tasks:
            span_s = time.monotonic() - at_s
            reporter.batch(_batch(done, done_rows[done] - done_rows[tasks], done_rows[-1] - done_rows[done], span_s))
            tasks, at_s = done, time.monotonic()


def _done_tasks(spark: SparkSession, group: str) -> int:
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def _batch(number: int, rows: int, left: int, span_s: float) -> Batch:
    per_s = round(rows / span_s, 1) if span_s else 0.0
    return Batch(number=number, rows=rows, rows_per_s=per_s, lag=left, duration_ms=round(span_s * 1000))
