"""Runs pipelines: builds the streaming query, starts it, and reports its progress until it ends.

A run is completed, fails, or is stopped. In each case the query is stopped. The next run continues where Spark's
checkpoint ends, and processes each message once. If the broker is away, the run waits for it, and starts the query
again at its checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from oncemq.spark.broker import Broker, find_broker
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
    context: str = "",
    token_file: str = "",
    tls: bool | str = "",
    session: SparkSession | None = None,
    master: str = "local[*]",
    conf: Mapping[str, object] | None = None,
    folder: str = ".",
    reporter: Reporter | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
    locate_sql: SqlLocator | None = None,
) -> Summary:
    """Run a pipeline until it is complete, or, with the trigger `every`, until `is_stopping` returns True.

    >>> run(totals, url="oncemq://127.0.0.1:5554").rows
    120000

    It can be called in any thread, and several pipelines can run in one session at the same time. Without a `session`,
    it runs in that of the process; if there is none, one is built, and stopped when the last run in it has ended.
    `folder` is an additional folder for Python modules, and `locate_sql` returns the position of the SQL in its file.

    `url` is the URL of the broker, or `context` the name of a context with its credentials, which each of Spark's
    processes looks up on its own machine; "" = ONCEMQ_URL or ONCEMQ_CONTEXT, the context that the pipeline names, the
    current context, or the default. `token_file` and `tls` are those of `connect`, with paths of each machine.

    Raises PipelineInvalid, PipelineFailed, SettingInvalid, and the errors of the broker.
    """
    ensure_valid(pipeline, folder)
    broker = find_broker(url=url, context=context, token_file=token_file, tls=tls, pipeline_context=pipeline.context)
    task = _Task(pipeline, broker, session, master, conf, folder, locate_sql)
    return task.execute(reporter or SilentReporter(), is_stopping)


def start(
    pipeline: Pipeline,
    *,
    url: str = "",
    context: str = "",
    token_file: str = "",
    tls: bool | str = "",
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

    Raises PipelineInvalid and SettingInvalid. Errors of the run are raised by `wait` and `stop` of the handle."""
    ensure_valid(pipeline, folder)
    broker = find_broker(url=url, context=context, token_file=token_file, tls=tls, pipeline_context=pipeline.context)
    task = _Task(pipeline, broker, session, master, conf, folder, locate_sql)
    return RunningPipeline(pipeline.name, task.execute, reporter or SilentReporter())


class _Task(NamedTuple):
    """What to run, and where. The other fields are arguments of `run`."""

    pipeline: Pipeline
    broker: Broker
    session: SparkSession | None
    master: str
    conf: Mapping[str, object] | None
    folder: str
    locate_sql: SqlLocator | None

    def execute(
        self,
        reporter: Reporter,
        is_stopping: Callable[[], bool],
        on_query: Callable[[StreamingQuery | None], None] = lambda _: None,
    ) -> Summary:
        from oncemq.spark.session import activate, session_for

        with session_for(self.session, self.pipeline.name, self.master, self.conf) as session, self.explain_errors():
            activate(session)
            return _Run(session, self, reporter, is_stopping, on_query).execute()

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        from pyspark.errors import PySparkException

        from oncemq.spark import jvm
        from oncemq.spark.pipeline.spark_errors import explain

        try:
            with jvm.explained():
                yield
        except PySparkException as error:
            sql = self.pipeline.transform.sql if self.pipeline.transform else ""
            raise explain(error, self.locate_sql, sql) from error


class _Run:
    """One run: a query, or several of them in turn if the broker was away."""

    def __init__(
        self,
        session: SparkSession,
        task: _Task,
        reporter: Reporter,
        is_stopping: Callable[[], bool],
        on_query: Callable[[StreamingQuery | None], None],
    ) -> None:
        self._session = session
        self._task = task
        self._pipeline = task.pipeline
        self._reporter = reporter
        self._is_stopping = is_stopping
        self._on_query = on_query
        self._watcher = ProgressWatcher(reporter)
        self._broker = task.broker
        self._outage = BrokerWait(task.broker, task.pipeline.broker_timeout_s, reporter.notice, is_stopping)

    def execute(self) -> Summary:
        begin_s = time.monotonic()
        summary = None
        with locked(self._pipeline.checkpoint):
            self._reporter.begin(self._pipeline.name)
            try:
                is_stopped = self._run_queries()
                if self._pipeline.ack_last and not is_stopped:
                    ack_last(self._pipeline, self._broker, self._watcher.end_offsets)
                summary = self._watcher.summary(self._pipeline.name, time.monotonic() - begin_s, is_stopped)
            finally:
                self._reporter.end(summary)
        return summary

    def _run_queries(self) -> bool:
        """Run the query until it ends, and again after the broker was away. Returns whether it was stopped."""
        while self._outage.wait():
            reports = self._watcher.reports
            begin_s = time.monotonic()
            try:
                with self._task.explain_errors():
                    return self._run_query()
            except AWAY:
                if self._watcher.reports > reports:
                    self._outage.end()
                self._outage.begin(min(call_timeout_s(self._pipeline), time.monotonic() - begin_s))
        return True

    def _run_query(self) -> bool:
        require_topics(self._pipeline, self._broker)
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
        keep_dead_letters(pipeline, self._broker)
        streams = build_streams(self._session, pipeline, self._broker, self._task.folder)
        return sinks.start(
            streams.rows,
            pipeline.written_target,
            dead=streams.dead,
            checkpoint=pipeline.checkpoint,
            trigger=pipeline.trigger.options,
            name=pipeline.name,
            broker=self._broker,
            output=pipeline.output,
            timeout=call_timeout(pipeline),
        )

    def _await_end(self, query: StreamingQuery) -> bool:
        """Wait until the query ends, or stop it. Returns whether it was stopped."""
        reports = self._watcher.reports
        while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
            self._watcher.poll(query)
            if self._outage.is_waiting and self._watcher.reports > reports:
                self._outage.end()
            if self._is_stopping():
                # The next run repeats the current micro-batch if it was not committed; it is written once.
                query.stop()
                self._watcher.poll(query)
                return True
        self._watcher.poll(query)
        return False
