"""A pipeline's run: a session, the stream through its parts, and an eye on it until it ends.

The order in which things can end a run: it is done, it fails, somebody stops it. In each case the query is stopped and
what was not finished is done by the next run, once: Spark's checkpoint knows where it was.
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
from oncemq.spark.pipeline.progress import OBSERVED, Batch, Reporter, Silent, Summary, batch_of
from oncemq.spark.targets.declarations import TopicTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from oncemq.spark.pipeline.spark_errors import Place

_POLL_S = 0.2
#: In the checkpoint's folder: two runs on one would be in each other's way.
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
    place: Place | None = None,
) -> Summary:
    """Run a pipeline until it is done, or, with a trigger that never ends, until `is_stopping`.

        totals = Pipeline(
            name="order-totals",
            source=Source(topic="orders"),
            value=Value(format="json", schema="id BIGINT, price DOUBLE, pieces INT"),
            transform=Transform(sql="SELECT id, price * pieces AS total FROM messages"),
            target=TopicTarget(topic="totals", create=True),
            checkpoint="/var/lib/pipelines/order-totals",
        )
        run(totals, url="tcp://127.0.0.1:5555")

    Without a `session` one is built for this run and stopped after it. `url` is the broker's ("" = ONCEMQ_URL, or the
    usual one), `folder` that in which modules of Python are looked for too, and `place` says where the SQL stands.
    Raises PipelineInvalid, PipelineFailed, or what the broker said.
    """
    ensure_valid(pipeline, folder)
    if session is None:
        with _session_of(pipeline, master, conf) as own:
            return _run(own, pipeline, url, folder, reporter or Silent(), is_stopping, place)
    return _run(session, pipeline, url, folder, reporter or Silent(), is_stopping, place)


@contextmanager
def _session_of(pipeline: Pipeline, master: str, conf: Mapping[str, object] | None) -> Iterator[SparkSession]:
    from oncemq.spark import session

    built = session.build(pipeline.name, master=master, conf=conf)
    try:
        yield built
    finally:
        built.stop()


def _run(
    session: SparkSession,
    pipeline: Pipeline,
    url: str,
    folder: str,
    reporter: Reporter,
    is_stopping: Callable[[], bool],
    place: Place | None,
) -> Summary:
    from oncemq.spark.options import broker_url

    url = broker_url(url)
    begin_s = time.monotonic()
    with _explaining(pipeline, place), _locked(pipeline.checkpoint):
        query = start(session, pipeline, url, folder)
        reporter.begin(pipeline.name)
        watch = _Watch(query, reporter)
        summary = None
        try:
            is_stopped = _follow(query, watch, is_stopping)
            if pipeline.ack_last and not is_stopped:
                _ack_last(pipeline, url, watch.end_offset)
            summary = watch.summary(pipeline.name, time.monotonic() - begin_s, is_stopped)
        finally:
            query.stop()
            reporter.end(summary)
        return summary


def start(session: SparkSession, pipeline: Pipeline, url: str, folder: str = ".") -> StreamingQuery:
    """The query, started."""
    from oncemq.spark.targets import start as sinks

    return sinks.start(
        stream_of(session, pipeline, url, folder),
        pipeline.target,
        checkpoint=pipeline.checkpoint,
        trigger=pipeline.trigger.options,
        name=pipeline.name,
        url=url,
    )


def stream_of(session: SparkSession, pipeline: Pipeline, url: str, folder: str = ".") -> DataFrame:
    """The rows as the target gets them."""
    from pyspark.sql import functions as F

    from oncemq.spark.pipeline.transform import transformed, watermarked
    from oncemq.spark.pipeline.value_decoder import parsed
    from oncemq.spark.pipeline.value_encoder import encoded

    messages = session.readStream.format("oncemq").options(**source_options(pipeline, url)).load()
    # Spark does not count the rows of sources that are written in Python.
    messages = messages.observe(OBSERVED, F.count(F.lit(1)).alias("rows"))
    rows = watermarked(parsed(messages, pipeline.value, pipeline.source.columns), pipeline.watermark)
    result = transformed(rows, pipeline.transform, folder)
    if isinstance(pipeline.target, TopicTarget):
        return encoded(result, pipeline.encoding, by_row=not pipeline.target.topic)
    return result


def source_options(pipeline: Pipeline, url: str) -> dict[str, str]:
    """As `format("oncemq")` takes them."""
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
    # Topics that are not named start as they do where nothing is said.
    return json.dumps({name: start.get(name, "earliest") for name in pipeline.source.names})


class _Watch:
    """Tells the reporter of each micro-batch, once."""

    def __init__(self, query: StreamingQuery, reporter: Reporter) -> None:
        self._query = query
        self._reporter = reporter
        self._last_key = ("", -1)
        self._batches = 0
        self._rows = 0
        self._lag: int | None = None
        #: Where the last micro-batch ended, as the source says it.
        self.end_offset: Any = None

    def look(self) -> None:
        last = self._query.lastProgress
        if last is None or _key(last) == self._last_key:
            return
        recent = [progress for progress in self._query.recentProgress if _key(progress) > self._last_key]
        for progress in recent:
            self._last_key = _key(progress)
            self._note(json.loads(progress.json))

    def _note(self, progress: Mapping[str, Any]) -> None:
        batch = batch_of(progress)
        self.end_offset = (progress.get("sources") or [{}])[0].get("endOffset")
        self._lag = batch.lag
        if batch.rows:
            self._count(batch)

    def _count(self, batch: Batch) -> None:
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
    """Rises from one to the next, also where a micro-batch without rows has the number of the one before."""
    return progress.timestamp, progress.batchId


def _follow(query: StreamingQuery, watch: _Watch, is_stopping: Callable[[], bool]) -> bool:
    """Until the query has ended; whether somebody stopped it."""
    while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
        watch.look()
        if is_stopping():
            # What the micro-batch under way has done is thrown away or known to be done: it comes again, once.
            query.stop()
            watch.look()
            return True
    watch.look()
    return False


def _ack_last(pipeline: Pipeline, url: str, end_offset: Any) -> None:
    """Spark itself lets the source ack a micro-batch when the next one begins, so that the last stays unacked."""
    if end_offset is None:
        return
    from oncemq.spark import options
    from oncemq.spark.source.source import StreamReader

    reader = StreamReader(options.source_options(source_options(pipeline, url), is_stream=True))
    reader.commit(end_offset if isinstance(end_offset, dict) else json.loads(end_offset))


@contextmanager
def _explaining(pipeline: Pipeline, place: Place | None) -> Iterator[None]:
    from pyspark.errors import PySparkException

    from oncemq.spark.pipeline.spark_errors import explained

    try:
        yield
    except PySparkException as error:
        sql = pipeline.transform.sql if pipeline.transform else ""
        raise explained(error, place, sql) from error


@contextmanager
def _locked(checkpoint: str) -> Iterator[None]:
    """While this lasts, no other run uses the checkpoint. Where a folder is not of this machine, Spark itself has to
    find out: the second run fails."""
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
