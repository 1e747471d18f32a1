"""Runs pipelines: builds the streaming query, starts it, and reports its progress until it ends.

A run is completed, fails, or is stopped. In each case the query is stopped. The next run continues where Spark's
checkpoint ends, and processes each message once. If the broker is away, the run waits for it, and starts the query
again at its checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oncemq.spark.pipeline.model import Pipeline
from oncemq.spark.pipeline.pipeline_file import ensure_valid
from oncemq.spark.pipeline.progress import Reporter, SilentReporter, Summary
from oncemq.spark.pipeline.runs.acks import ack_last
from oncemq.spark.pipeline.runs.broker_wait import AWAY, BrokerWait
from oncemq.spark.pipeline.runs.checkpoint_lock import locked
from oncemq.spark.pipeline.runs.handle import RunningPipeline
from oncemq.spark.pipeline.runs.stream import build_streams, call_timeout, call_timeout_s
from oncemq.spark.pipeline.runs.topics import require_topics
from oncemq.spark.pipeline.runs.watcher import ProgressWatcher
from oncemq.spark.pipeline.values.dead_letters import keep_dead_letters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from oncemq.spark.pipeline.spark_errors import SqlLocator

_POLL_S = 0.2


def run(
    pipeline: Pipeline,
    *,
    url: str = "",
    session: SparkSession | None = None,
    master: str = "local[*]",
    conf: Mapping[str, object] | None = None,
    folder: str = ".",
    reporter: Reporter | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
    locate_sql: SqlLocator | None = None,
) -> Summary:
    """Run a pipeline until it is complete, or, with the trigger `every`, until `is_stopping` returns True.

    >>> run(totals, url="tcp://127.0.0.1:5555").rows
    120000

    It can be called in any thread, and several pipelines can run in one session at the same time. Without a `session`,
    one is built for this run and stopped at its end. `url` is the URL of the broker ("" = ONCEMQ_URL, or the default),
    `folder` is an additional folder for Python modules, and `locate_sql` returns the position of the SQL in its file.
    Raises PipelineInvalid, PipelineFailed, and the errors of the broker.
    """
    ensure_valid(pipeline, folder)
    return _execute(
        pipeline,
        url=url,
        session=session,
        master=master,
        conf=conf,
        folder=folder,
        reporter=reporter or SilentReporter(),
        is_stopping=is_stopping,
        locate_sql=locate_sql,
        on_query=lambda _: None,
    )


def start(
    pipeline: Pipeline,
    *,
    url: str = "",
    session: SparkSession | None = None,
    master: str = "local[*]",
    conf: Mapping[str, object] | None = None,
    folder: str = ".",
    reporter: Reporter | None = None,
    locate_sql: SqlLocator | None = None,
) -> RunningPipeline:
    """Run a pipeline in a thread of its own, and return a handle immediately. The arguments are those of `run`.

    >>> running = start(totals, session=spark)
    >>> running.progress.rows, running.status
    (1200, 'running')
    >>> running.stop().rows
    120000

    Raises PipelineInvalid. Errors of the run are raised by `wait` and `stop` of the handle."""
    ensure_valid(pipeline, folder)

    def execute(
        reporter: Reporter, is_stopping: Callable[[], bool], on_query: Callable[[StreamingQuery | None], None]
    ) -> Summary:
        return _execute(
            pipeline,
            url=url,
            session=session,
            master=master,
            conf=conf,
            folder=folder,
            reporter=reporter,
            is_stopping=is_stopping,
            locate_sql=locate_sql,
            on_query=on_query,
        )

    return RunningPipeline(pipeline.name, execute, reporter or SilentReporter())


def _execute(
    pipeline: Pipeline,
    *,
    url: str,
    session: SparkSession | None,
    master: str,
    conf: Mapping[str, object] | None,
    folder: str,
    reporter: Reporter,
    is_stopping: Callable[[], bool],
    locate_sql: SqlLocator | None,
    on_query: Callable[[StreamingQuery | None], None],
) -> Summary:
    from oncemq.spark.options import broker_url
    from oncemq.spark.session import activate, session_for

    with session_for(session, pipeline.name, master, conf) as used, _explain_errors(pipeline, locate_sql):
        activate(used)
        return _Run(used, pipeline, broker_url(url), folder, reporter, is_stopping, locate_sql, on_query).execute()


class _Run:
    """One run: a query, or several of them in turn if the broker was away."""

    def __init__(
        self,
        session: SparkSession,
        pipeline: Pipeline,
        url: str,
        folder: str,
        reporter: Reporter,
        is_stopping: Callable[[], bool],
        locate_sql: SqlLocator | None,
        on_query: Callable[[StreamingQuery | None], None],
    ) -> None:
        self._session = session
        self._pipeline = pipeline
        self._url = url
        self._folder = folder
        self._reporter = reporter
        self._is_stopping = is_stopping
        self._locate_sql = locate_sql
        self._on_query = on_query
        self._watcher = ProgressWatcher(reporter)
        self._broker = BrokerWait(url, pipeline.broker_timeout_s, reporter.notice, is_stopping)

    def execute(self) -> Summary:
        begin_s = time.monotonic()
        summary = None
        with locked(self._pipeline.checkpoint):
            self._reporter.begin(self._pipeline.name)
            try:
                is_stopped = self._run_queries()
                if self._pipeline.ack_last and not is_stopped:
                    ack_last(self._pipeline, self._url, self._watcher.end_offsets)
                summary = self._watcher.summary(self._pipeline.name, time.monotonic() - begin_s, is_stopped)
            finally:
                self._reporter.end(summary)
        return summary

    def _run_queries(self) -> bool:
        """Run the query until it ends, and again after the broker was away. Returns whether it was stopped."""
        while self._broker.wait():
            reports = self._watcher.reports
            begin_s = time.monotonic()
            try:
                with _explain_errors(self._pipeline, self._locate_sql):
                    return self._run_query()
            except AWAY:
                if self._watcher.reports > reports:
                    self._broker.end()
                self._broker.begin(min(call_timeout_s(self._pipeline), time.monotonic() - begin_s))
        return True

    def _run_query(self) -> bool:
        require_topics(self._pipeline, self._url)
        query = self._start_query()
        self._on_query(query)
        try:
            return self._await_end(query)
        finally:
            query.stop()
            self._on_query(None)

    def _start_query(self) -> StreamingQuery:
        from oncemq.spark.targets import start as sinks

        pipeline = self._pipeline
        keep_dead_letters(pipeline, self._url)
        streams = build_streams(self._session, pipeline, self._url, self._folder)
        return sinks.start(
            streams.rows,
            pipeline.written_target,
            dead=streams.dead,
            checkpoint=pipeline.checkpoint,
            trigger=pipeline.trigger.options,
            name=pipeline.name,
            url=self._url,
            output=pipeline.output,
            timeout=call_timeout(pipeline),
        )

    def _await_end(self, query: StreamingQuery) -> bool:
        """Wait until the query ends, or stop it. Returns whether it was stopped."""
        reports = self._watcher.reports
        while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
            self._watcher.poll(query)
            if self._broker.is_waiting and self._watcher.reports > reports:
                self._broker.end()
            if self._is_stopping():
                # The next run repeats the current micro-batch if it was not committed; it is written once.
                query.stop()
                self._watcher.poll(query)
                return True
        self._watcher.poll(query)
        return False


@contextmanager
def _explain_errors(pipeline: Pipeline, locate_sql: SqlLocator | None) -> Iterator[None]:
    from pyspark.errors import PySparkException

    from oncemq.spark import jvm
    from oncemq.spark.pipeline.spark_errors import explain

    try:
        with jvm.explained():
            yield
    except PySparkException as error:
        sql = pipeline.transform.sql if pipeline.transform else ""
        raise explain(error, locate_sql, sql) from error
