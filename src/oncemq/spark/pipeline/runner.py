"""Runs a pipeline: builds the streaming query, starts it, and reports its progress until it ends.

A run is completed, fails, or is stopped. In each case the query is stopped. The next run continues where Spark's
checkpoint ends, and processes each message once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oncemq.protocol.errors import PipelineFailed
from oncemq.spark.pipeline.model import Pipeline
from oncemq.spark.pipeline.pipeline_file import ensure_valid
from oncemq.spark.pipeline.progress import OBSERVED, Reporter, SilentReporter, Summary, parse_progress
from oncemq.spark.targets.declarations import TopicTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from oncemq.spark.pipeline.spark_errors import SqlLocator

_POLL_S = 0.2
#: In the checkpoint's folder. It prevents two runs on one checkpoint.
_LOCK_FILE = "oncemq-run.lock"


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

    Without a `session`, one is built for this run and stopped at its end. `url` is the URL of the broker ("" =
    ONCEMQ_URL, or the default), `folder` is an additional folder for Python modules, and `locate_sql` returns the
    position of the SQL in its file. Raises PipelineInvalid, PipelineFailed, and the errors of the broker.
    """
    from oncemq.spark.session import session_for

    ensure_valid(pipeline, folder)
    with session_for(session, pipeline.name, master, conf) as used:
        return _run(used, pipeline, url, folder, reporter or SilentReporter(), is_stopping, locate_sql)


def _run(
    session: SparkSession,
    pipeline: Pipeline,
    url: str,
    folder: str,
    reporter: Reporter,
    is_stopping: Callable[[], bool],
    locate_sql: SqlLocator | None,
) -> Summary:
    from oncemq.spark.options import broker_url

    url = broker_url(url)
    begin_s = time.monotonic()
    with _explain_errors(pipeline, locate_sql), _locked(pipeline.checkpoint):
        query = start(session, pipeline, url, folder)
        reporter.begin(pipeline.name)
        watcher = _ProgressWatcher(query, reporter)
        summary = None
        try:
            is_stopped = _await_end(query, watcher, is_stopping)
            if pipeline.ack_last and not is_stopped:
                _ack_last(pipeline, url, watcher.end_offset)
            summary = watcher.summary(pipeline.name, time.monotonic() - begin_s, is_stopped)
        finally:
            query.stop()
            reporter.end(summary)
        return summary


def start(session: SparkSession, pipeline: Pipeline, url: str, folder: str = ".") -> StreamingQuery:
    """Start the streaming query of a pipeline."""
    from oncemq.spark.targets import start as sinks

    return sinks.start(
        build_stream(session, pipeline, url, folder),
        pipeline.target,
        checkpoint=pipeline.checkpoint,
        trigger=pipeline.trigger.options,
        name=pipeline.name,
        url=url,
    )


def build_stream(session: SparkSession, pipeline: Pipeline, url: str, folder: str = ".") -> DataFrame:
    """The stream of rows that the target writes."""
    from pyspark.sql import functions as F

    from oncemq.spark.pipeline.transform import apply_transform, apply_watermark
    from oncemq.spark.pipeline.value_decoder import decode_values
    from oncemq.spark.pipeline.value_encoder import encode_rows

    messages = session.readStream.format("oncemq").options(**source_options(pipeline, url)).load()
    # Spark does not count the rows of Python data sources.
    messages = messages.observe(OBSERVED, F.count(F.lit(1)).alias("rows"))
    rows = apply_watermark(decode_values(messages, pipeline.value, pipeline.source.columns), pipeline.watermark)
    result = apply_transform(rows, pipeline.transform, folder)
    if isinstance(pipeline.target, TopicTarget):
        return encode_rows(result, pipeline.encoding, by_row=not pipeline.target.topic)
    return result


def source_options(pipeline: Pipeline, url: str) -> dict[str, str]:
    """The options of `format("oncemq")`."""
    from oncemq.spark.pipeline.value_decoder import source_columns

    source = pipeline.source
    options = {
        "url": url,
        "subscription": pipeline.subscription,
        "startingOffsets": _starting(pipeline),
        "columns": ",".join(source_columns(pipeline)),
        "failOnDataLoss": str(source.on_loss == "fail").lower(),
    }
    if source.pattern:
        options["pattern"] = source.pattern
    else:
        options["topics"] = json.dumps(source.names)
    if source.max_per_trigger:
        options["maxOffsetsPerTrigger"] = str(source.max_per_trigger)
    if source.partitions:
        options["partitions"] = str(source.partitions)
    return options


def _starting(pipeline: Pipeline) -> str:
    start = pipeline.source.start
    if isinstance(start, str):
        return start
    # A topic that is not in the mapping starts at the default of a pipeline, not at that of a stream.
    return json.dumps({name: start.get(name, "earliest") for name in pipeline.source.names})


class _ProgressWatcher:
    """Calls the reporter for each micro-batch once."""

    def __init__(self, query: StreamingQuery, reporter: Reporter) -> None:
        self._query = query
        self._reporter = reporter
        self._last_key = ("", -1)
        self._batches = 0
        self._rows = 0
        self._lag: int | None = None
        #: The end of the last micro-batch, as an offset of the source.
        self.end_offset: Any = None

    def poll(self) -> None:
        last = self._query.lastProgress
        if last is None or _key(last) == self._last_key:
            return
        recent = [progress for progress in self._query.recentProgress if _key(progress) > self._last_key]
        for progress in recent:
            self._last_key = _key(progress)
            self._report(json.loads(progress.json))

    def _report(self, progress: Mapping[str, Any]) -> None:
        batch = parse_progress(progress)
        self.end_offset = (progress.get("sources") or [{}])[0].get("endOffset")
        self._lag = batch.lag
        if batch.rows:
            self._batches += 1
            self._rows += batch.rows
            self._reporter.batch(batch)

    def summary(self, name: str, duration_s: float, is_stopped: bool) -> Summary:
        return Summary(
            name=name,
            batches=self._batches,
            rows=self._rows,
            duration_s=round(duration_s, 3),
            lag=self._lag,
            is_stopped=is_stopped,
        )


def _key(progress: Any) -> tuple[str, int]:
    """Increases with each report, even if a micro-batch without rows has the number of the previous one."""
    return progress.timestamp, progress.batchId


def _await_end(query: StreamingQuery, watcher: _ProgressWatcher, is_stopping: Callable[[], bool]) -> bool:
    """Wait until the query ends, or stop it. Returns whether it was stopped."""
    while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
        watcher.poll()
        if is_stopping():
            # The next run repeats the current micro-batch if it was not committed; it is written once.
            query.stop()
            watcher.poll()
            return True
    watcher.poll()
    return False


def _ack_last(pipeline: Pipeline, url: str, end_offset: Any) -> None:
    """Ack the last micro-batch. Spark commits a micro-batch when the next one begins, so the last one is not acked."""
    if end_offset is None:
        return
    from oncemq.spark import options
    from oncemq.spark.source.source import StreamReader

    reader = StreamReader(options.source_options(source_options(pipeline, url), is_stream=True))
    reader.commit(end_offset if isinstance(end_offset, dict) else json.loads(end_offset))


@contextmanager
def _explain_errors(pipeline: Pipeline, locate_sql: SqlLocator | None) -> Iterator[None]:
    from pyspark.errors import PySparkException

    from oncemq.spark.pipeline.spark_errors import explain

    try:
        yield
    except PySparkException as error:
        sql = pipeline.transform.sql if pipeline.transform else ""
        raise explain(error, locate_sql, sql) from error


@contextmanager
def _locked(checkpoint: str) -> Iterator[None]:
    """Lock the checkpoint against other runs. A remote folder can't be locked; there, Spark lets the second run fail.

    Raises PipelineFailed."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    if "://" in checkpoint:
        yield
        return
    os.makedirs(checkpoint, exist_ok=True)
    with open(os.path.join(checkpoint, _LOCK_FILE), "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"another run uses the checkpoint {checkpoint}; stop it, or give this pipeline another checkpoint"
            raise PipelineFailed(text) from None
        yield
