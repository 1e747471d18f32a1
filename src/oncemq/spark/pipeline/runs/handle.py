"""The handle of a pipeline that runs in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from oncemq.spark.pipeline.progress import Batch, Reporter, Summary

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    #: Runs the pipeline: calls the reporter, stops when asked to, and reports its current query.
    Execute = Callable[[Reporter, Callable[[], bool], Callable[[StreamingQuery | None], None]], Summary]

Status = Literal["starting", "running", "waiting", "done", "stopped", "failed"]


class RunningPipeline:
    """A pipeline that was started. Its methods can be called in any thread."""

    def __init__(self, name: str, execute: Execute, reporter: Reporter) -> None:
        self.name = name
        self._execute = execute
        self._reporter = reporter
        self._stopping = threading.Event()
        self._query: StreamingQuery | None = None
        self._batch: Batch | None = None
        self._notice = ""
        self._summary: Summary | None = None
        self._error: BaseException | None = None
        self._status: Status = "starting"
        # A program that ends does not wait for it: the next run continues where the checkpoint ends.
        self._thread = threading.Thread(target=self._run, name=f"pipeline {name}", daemon=True)
        self._thread.start()

    @property
    def query(self) -> StreamingQuery | None:
        """Spark's query; None while the pipeline starts or waits for the broker, and after its end."""
        return self._query

    @property
    def progress(self) -> Batch | None:
        """The last micro-batch that had rows."""
        return self._batch

    @property
    def notice(self) -> str:
        """The last notice, such as that the broker is unreachable; "" = none."""
        return self._notice

    @property
    def exception(self) -> BaseException | None:
        """The error with which the run has failed."""
        return self._error

    @property
    def status(self) -> Status:
        return self._status

    @property
    def is_running(self) -> bool:
        """Whether the run has not ended."""
        return self._thread.is_alive()

    def stop(self, timeout_s: float | None = None) -> Summary | None:
        """Stop the run, wait for its end, and return its summary. Raises the error with which it failed."""
        self.request_stop()
        return self.wait(timeout_s)

    def request_stop(self) -> None:
        """Stop the run, without waiting for its end."""
        self._stopping.set()

    def wait(self, timeout_s: float | None = None) -> Summary | None:
        """Wait until the run ends, and return its summary; None if it has not ended after `timeout_s`.

        Raises the error with which it failed."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return None
        if self._error is not None:
            raise self._error
        return self._summary

    def _run(self) -> None:
        try:
            self._summary = self._execute(_Recorder(self, self._reporter), self._stopping.is_set, self._set_query)
            self._status = "stopped" if self._summary.is_stopped else "done"
        except BaseException as error:
            self._error = error
            self._status = "failed"
        finally:
            self._query = None

    def _set_query(self, query: StreamingQuery | None) -> None:
        self._query = query
        if query is not None:
            self._status = "running"
            self._notice = ""

    def record(self, batch: Batch) -> None:
        self._batch = batch

    def record_notice(self, text: str) -> None:
        self._notice = text
        if self._query is None:
            self._status = "waiting"


class _Recorder:
    """A reporter that also tells the handle."""

    def __init__(self, handle: RunningPipeline, reporter: Reporter) -> None:
        self._handle = handle
        self._reporter = reporter

    def begin(self, name: str) -> None:
        self._reporter.begin(name)

    def batch(self, batch: Batch) -> None:
        self._handle.record(batch)
        self._reporter.batch(batch)

    def notice(self, text: str) -> None:
        self._handle.record_notice(text)
        self._reporter.notice(text)

    def end(self, summary: Summary | None) -> None:
        self._reporter.end(summary)
