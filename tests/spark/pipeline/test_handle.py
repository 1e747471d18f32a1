"""The handle of a pipeline that was started: its status, from the start to the end. No Spark here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from oncemq.protocol.errors import PipelineFailed
from oncemq.spark.pipeline import RunningPipeline
from oncemq.spark.pipeline.progress import Reporter, SilentReporter, Summary

QUERY: Any = object()
DEADLINE_S = 30


class Steps:
    """A run that waits after each of its steps until the test lets it continue."""

    def __init__(self, *, is_stopped: bool = False, error: Exception | None = None) -> None:
        self._is_stopped = is_stopped
        self._error = error
        self._done = threading.Semaphore(0)
        self._next = threading.Semaphore(0)
        self.handle = RunningPipeline("totals", self._execute, SilentReporter())

    def status_after_step(self) -> str:
        assert self._done.acquire(timeout=DEADLINE_S)
        status = self.handle.status
        self._next.release()
        return status

    def _execute(self, reporter: Reporter, is_stopping: Callable[[], bool], on_query: Callable[[Any], None]) -> Summary:
        del is_stopping
        steps: list[Callable[[], None]] = [
            lambda: reporter.begin("totals"),
            lambda: on_query(QUERY),
            lambda: on_query(None),
            lambda: reporter.notice("the broker is unreachable"),
            lambda: on_query(QUERY),
            lambda: reporter.notice("something else"),
            lambda: on_query(None),
        ]
        for step in steps:
            step()
            self._done.release()
            assert self._next.acquire(timeout=DEADLINE_S)
        if self._error is not None:
            raise self._error
        return Summary(name="totals", batches=0, rows=0, duration_s=0, lag=None, is_stopped=self._is_stopped)


def test_a_run_that_has_begun_is_running_or_waiting_until_it_ends() -> None:
    steps = Steps()
    found = [steps.status_after_step() for _ in range(7)]
    assert found == ["starting", "running", "running", "waiting", "running", "running", "running"]
    steps.handle.wait(DEADLINE_S)
    assert (steps.handle.status, steps.handle.query) == ("done", None)


def test_the_status_says_how_a_run_has_ended() -> None:
    stopped, failed = Steps(is_stopped=True), Steps(error=PipelineFailed("so be it"))
    for steps in (stopped, failed):
        for _ in range(7):
            steps.status_after_step()
    stopped.handle.wait(DEADLINE_S)
    with pytest.raises(PipelineFailed, match="so be it"):
        failed.handle.wait(DEADLINE_S)
    assert (stopped.handle.status, failed.handle.status) == ("stopped", "failed")
