"""How far a batch job of Spark is, for a reporter: by its tasks, each of which has a known number of rows."""

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
def following(spark: SparkSession, name: str, rows: Sequence[int], reporter: Reporter) -> Iterator[None]:
    """Inside, the reporter is told of what this thread's jobs have done; a task of `rows` counts when it has ended."""
    group = str(uuid.uuid4())
    spark.sparkContext.setJobGroup(group, name)
    is_over = threading.Event()
    follower = threading.Thread(target=_follow, args=(spark, group, rows, reporter, is_over), daemon=True)
    reporter.begin(name)
    follower.start()
    try:
        yield
    finally:
        is_over.set()
        follower.join()
        reporter.end(None)


def _follow(spark: SparkSession, group: str, rows: Sequence[int], reporter: Reporter, is_over: threading.Event) -> None:
    done_rows = [0, *accumulate(rows)]
    tasks, at_s = 0, time.monotonic()
    while not is_over.wait(_POLL_S):
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
