"""From a lake back into topics: a batch write for each topic, which the broker recognises when it comes again.

Everything that can be wrong is found before Spark starts: the archive is surveyed, the topics are looked at, and who
was restored before is not restored again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

import oncemq
from oncemq.protocol import errors
from oncemq.spark.lake.files import files_of
from oncemq.spark.lake.plan import Plan, plan_of
from oncemq.spark.lake.selection import Selection, selection_of
from oncemq.spark.lake.survey import Life, survey
from oncemq.spark.options import broker_url, sink_options
from oncemq.spark.pipeline.progress import Reporter, SilentReporter
from oncemq.spark.targets.files.file_writer import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.client.sync import Client
    from oncemq.protocol.replies import TopicInfo

#: Of topics that a restore makes: time enough to subscribe.
RETAIN_MS = 7 * 24 * 3600 * 1000

_log = logging.getLogger(__name__)


class Job(msgspec.Struct, frozen=True):
    """All that is restored of one topic."""

    source: str
    target: str
    plan: Plan
    #: Messages between the first and the last that the archive does not have.
    missing: int


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one topic."""

    source: str
    target: str
    messages: int
    missing: int
    #: Of the messages in the target; None where others wrote to it at the same time.
    first_offset: int | None = None
    last_offset: int | None = None
    #: By which the broker recognises it.
    id: str
    #: It was restored before: nothing has happened.
    before: bool = False


def restore(
    folder: str,
    *,
    to: str = "",
    prefix: str = "",
    topic: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
    offsets: str = "",
    id: str = "",
    again: bool = False,
    create: bool = False,
    retain_ms: int = RETAIN_MS,
    url: str = "",
    session: SparkSession | None = None,
    master: str = "local[*]",
    conf: Mapping[str, object] | None = None,
    reporter: Reporter | None = None,
    warn: Callable[[str], None] = _log.warning,
) -> list[Restored]:
    """Put archived messages back into topics, in their order, with keys, headers and time stamps, each once.

    >>> restore("/lake/orders", to="orders-again", create=True)[0].messages
    120000

    All topics of the archive, or one `topic`; into topics of the same names behind `prefix`, or into one, `to`. `since`
    is part of what is restored, `until` is not, and of `offsets="100:200"` the last is 199.

    What is the same restore, of the same messages into the same topic, happens once: the second time changes nothing.
    `id` is what it is recognised by, instead; `again` does it once more. `create` makes topics that are not there, with
    a retention of `retain_ms`. Raises PipelineInvalid, PipelineFailed, or what the broker said.
    """
    if id and again:
        raise errors.PipelineInvalid("an id of your own says already whether it is the same restore")
    url = broker_url(url)
    selection = selection_of(topic=topic, since=since, until=until, offsets=offsets)
    jobs = jobs_of(folder, selection, to=to, prefix=prefix, warn=warn)
    with oncemq.connect(url, label="restore") as client:
        targets = _targets(client, [job.target for job in jobs], retain_ms if create else None)
        ids = {job.source: id or _id_of(folder, job, targets[job.target].topic_id, again=again) for job in jobs}
        todo = [job for job in jobs if not _is_done(client, _sink(url, job.target, ids[job.source]))]
        done = {job.source: _restored(job, ids[job.source], before=True) for job in jobs if job not in todo}
        if todo:
            with _session(session, master, conf) as spark:
                for job in todo:
                    done[job.source] = _write(spark, client, url, job, ids[job.source], reporter or SilentReporter())
    return [done[job.source] for job in jobs]


# What there is to do.


def jobs_of(
    folder: str, selection: Selection, *, to: str, prefix: str, warn: Callable[[str], None] = _log.warning
) -> list[Job]:
    """One for each topic. Raises PipelineInvalid where it is not clear what goes where."""
    if to and prefix:
        raise errors.PipelineInvalid("messages go into one topic (to), or into topics with a prefix, not both")
    topics = survey(files_of(folder), selection)
    if not topics:
        what = f"of topic '{selection.topic}' " if selection.topic else ""
        raise errors.PipelineInvalid(f"{folder} holds no message {what}that is asked for")
    if len(topics) > 1 and (to or selection.has_offsets):
        what = "into one topic" if to else "by their offsets"
        raise errors.PipelineInvalid(f"{len(topics)} topics can't be restored {what}; choose one: {', '.join(topics)}")
    return [_job(lives, selection, to or prefix + topic, warn) for topic, lives in topics.items()]


def _job(lives: Sequence[Life], selection: Selection, target: str, warn: Callable[[str], None]) -> Job:
    source = lives[0].topic
    if len(lives) > 1 and selection.has_offsets:
        text = f"'{source}' was deleted and made again, and had each offset {len(lives)} times"
        raise errors.PipelineInvalid(f"{text}: choose by the time stamps instead")
    for life in lives:
        if life.coverage.missing:
            warn(_missing(life, has_times=selection.has_times))
    return Job(source, target, plan_of(lives, selection), sum(life.coverage.missing for life in lives))


def _missing(life: Life, *, has_times: bool) -> str:
    coverage = life.coverage
    why = "they had expired before they were archived" + (", or are of other times" if has_times else "")
    return (
        f"the archive does not hold {coverage.missing:,} of the messages of '{life.topic}' between offsets "
        f"{coverage.first} and {coverage.stop - 1}: {why}."
    )


def _id_of(folder: str, job: Job, topic_id: int, *, again: bool) -> str:
    """The same for the same messages into the same topic; a topic that was deleted and made again is another one."""
    if again:
        return f"restore-{uuid.uuid4().hex}"
    selection = job.plan.selection
    times = (selection.since_us, selection.until_us)
    parts = (os.path.realpath(local_path(folder)), job.source, *times, selection.first, selection.stop)
    digest = hashlib.sha256(msgspec.json.encode((*parts, job.target, topic_id)))
    return f"restore-{digest.hexdigest()[:32]}"


# The broker.


def _targets(client: Client, names: Sequence[str], retain_ms: int | None) -> dict[str, TopicInfo]:
    """All of them there, and able to keep what they get. With a retention, those that are not there are made."""
    found = {info.name: info for info in client.topics()}
    absent = [name for name in names if name not in found]
    if absent and retain_ms is None:
        raise errors.TopicUnknown(f"there is no topic '{absent[0]}' to restore into; with create (--create) it is made")
    for name in absent:
        client.create_topic(name, retain_ms=retain_ms or 0)
    if absent:
        found = {info.name: info for info in client.topics()}
    for name in names:
        info = found[name]
        if not (info.subscriptions or info.retain_ms or info.retain_bytes):
            raise errors.PipelineInvalid(
                f"topic '{name}' has neither a subscription nor a retention, and would keep nothing of it: subscribe "
                f"to it first, or give it a retention"
            )
    return {name: found[name] for name in names}


def _sink(url: str, target: str, write_id: str) -> dict[str, str]:
    return {"url": url, "topic": target, "timestamps": "keep", "writeId": write_id}


def _is_done(client: Client, sink: Mapping[str, str]) -> bool:
    """Whether the broker knows this write. Asked with a commit of a stage that nobody has: it changes nothing."""
    from oncemq.spark.lake.data_source import ROWS
    from oncemq.spark.sink.writers import BatchWriter

    options = sink_options(sink, is_stream=False)
    writer = BatchWriter(options, ROWS, overwrite=False).writer_name()
    try:
        return client.commit(writer, options.write_number, options.topic, [(f"none/{uuid.uuid4().hex}", 1)]).before
    except errors.StageUnknown:
        return False


def _end(client: Client, topic: str) -> int:
    from oncemq.spark.source.topic_offsets import topic_bounds

    return topic_bounds(client, topic).end


# Spark.


@contextmanager
def _session(session: SparkSession | None, master: str, conf: Mapping[str, object] | None) -> Iterator[SparkSession]:
    if session is not None:
        yield session
        return
    from oncemq.spark.session import build

    built = build("restore", master=master, conf=conf)
    try:
        yield built
    finally:
        built.stop()


def _write(spark: SparkSession, client: Client, url: str, job: Job, write_id: str, reporter: Reporter) -> Restored:
    from pyspark.errors import PySparkException

    from oncemq.spark.lake.job_progress import following
    from oncemq.spark.pipeline.spark_errors import explain

    begun = _end(client, job.target)
    with tempfile.TemporaryDirectory(prefix="oncemq-restore-") as folder:
        plan = os.path.join(folder, "plan.json")
        with open(plan, "wb") as file:
            file.write(msgspec.json.encode(job.plan))
        try:
            with following(spark, f"restore into '{job.target}'", [part.count for part in job.plan.parts], reporter):
                _save(spark, plan, _sink(url, job.target, write_id))
        except PySparkException as error:
            raise explain(error) from error
    # If no more came than ours, they are ours.
    is_alone = _end(client, job.target) - begun == job.plan.count
    return _restored(job, write_id, first_offset=begun if is_alone else None)


def _save(spark: SparkSession, plan: str, options: Mapping[str, str]) -> None:
    from oncemq.spark.lake.data_source import LakeSource

    spark.dataSource.register(LakeSource)
    rows = spark.read.format(LakeSource.name()).option("plan", plan).load()
    rows.write.format("oncemq").mode("append").options(**options).save()


def _restored(job: Job, write_id: str, *, first_offset: int | None = None, before: bool = False) -> Restored:
    return Restored(
        source=job.source,
        target=job.target,
        messages=job.plan.count,
        missing=job.missing,
        first_offset=first_offset,
        last_offset=None if first_offset is None else first_offset + job.plan.count - 1,
        id=write_id,
        before=before,
    )
