"""Restores topics from an archive: a batch write for each topic, which the broker recognises if it is repeated.

The archive and the target topics are checked before Spark starts. A topic that was restored before is skipped.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from oncemq.protocol import errors
from oncemq.spark.broker import Broker, find_broker
from oncemq.spark.lake.files import list_files
from oncemq.spark.lake.layout import archive_root
from oncemq.spark.lake.plan import Plan, make_plan
from oncemq.spark.lake.schemas import restore_schema
from oncemq.spark.lake.selection import Selection, make_selection
from oncemq.spark.lake.survey import TopicIncarnation, survey
from oncemq.spark.options import sink_options
from oncemq.spark.pipeline.progress import Reporter, SilentReporter
from oncemq.spark.session import session_for
from oncemq.spark.targets.objects.location import is_object_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.client.sync import Client
    from oncemq.protocol.replies import TopicInfo

#: The retention of topics that a restore creates: enough time to subscribe.
RETAIN_MS = 7 * 24 * 3600 * 1000

_log = logging.getLogger(__name__)


class Job(msgspec.Struct, frozen=True):
    """The restore of one topic."""

    source: str
    target: str
    plan: Plan
    #: The number of messages between the first and the last that the archive does not contain.
    missing: int


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one topic."""

    source: str
    target: str
    messages: int
    missing: int
    #: The offsets in the target; None if other producers wrote to it at the same time.
    first_offset: int | None = None
    last_offset: int | None = None
    #: The id by which the broker recognises the restore.
    id: str
    #: It was restored before, and nothing was changed.
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
    context: str = "",
    token_file: str = "",
    tls: bool | str = "",
    session: SparkSession | None = None,
    master: str = "local[*]",
    conf: Mapping[str, object] | None = None,
    reporter: Reporter | None = None,
    warn: Callable[[str], None] = _log.warning,
) -> list[Restored]:
    """Restore archived messages into topics, in order, with keys, headers and time stamps, each once.

    >>> restore("/lake/orders", to="orders-again", create=True)[0].messages
    120000

    Restores all topics of the archive, or one `topic`, into topics of the same names with `prefix`, or into the topic
    `to`. `since` is inclusive, `until` is exclusive, and the last offset of `offsets="100:200"` is 199.

    A restore of the same messages into the same topic happens once: repeating it changes nothing. With `id`, it is
    recognised by that id instead. `again` restores the messages once more. `create` creates missing topics, with a
    retention of `retain_ms`. `url`, `context`, `token_file` and `tls` are those of `run`. Raises PipelineInvalid,
    PipelineFailed, SettingInvalid, and the errors of the broker.
    """
    if id and again:
        raise errors.PipelineInvalid(
            "use either id (--id) or again (--again): a new id already restores the messages once more"
        )
    broker = find_broker(url=url, context=context, token_file=token_file, tls=tls)
    selection = make_selection(topic=topic, since=since, until=until, offsets=offsets)
    jobs = plan_jobs(folder, selection, to=to, prefix=prefix, warn=warn)
    with broker.connect(label="restore") as client:
        targets = _targets(client, [job.target for job in jobs], retain_ms if create else None)
        ids = {job.source: id or _write_id(folder, job, targets[job.target].topic_id, again=again) for job in jobs}
        todo = [job for job in jobs if not _is_done(client, _sink_settings(broker, job.target, ids[job.source]))]
        done = {job.source: _restored(job, ids[job.source], before=True) for job in jobs if job not in todo}
        for job in todo:
            topic_ids = sorted({part.topic_id for part in job.plan.parts})
            restore_schema(client, folder, job.source, topic_ids, job.target)
        if todo:
            with session_for(session, "restore", master, conf) as spark:
                for job in todo:
                    done[job.source] = _write(spark, client, broker, job, ids[job.source], reporter or SilentReporter())
    return [done[job.source] for job in jobs]


# The jobs.


def plan_jobs(
    folder: str, selection: Selection, *, to: str, prefix: str, warn: Callable[[str], None] = _log.warning
) -> list[Job]:
    """Plan a job for each topic. Raises PipelineInvalid if the targets are ambiguous, or nothing is selected."""
    if to and prefix:
        raise errors.PipelineInvalid("give either a topic (to) or a prefix for the names of topics, not both")
    topics = survey(list_files(folder), selection)
    if not topics:
        what = f" of topic '{selection.topic}'" if selection.topic else ""
        raise errors.PipelineInvalid(f"{folder} contains no selected message{what}")
    if len(topics) > 1 and (to or selection.has_offsets):
        what = "into one topic" if to else "by their offsets"
        raise errors.PipelineInvalid(f"{len(topics)} topics can't be restored {what}; choose one: {', '.join(topics)}")
    return [_job(incarnations, selection, to or prefix + topic, warn) for topic, incarnations in topics.items()]


def _job(
    incarnations: Sequence[TopicIncarnation], selection: Selection, target: str, warn: Callable[[str], None]
) -> Job:
    source = incarnations[0].topic
    if len(incarnations) > 1 and selection.has_offsets:
        text = f"'{source}' was deleted and created again, and had each offset {len(incarnations)} times"
        raise errors.PipelineInvalid(f"{text}: select by time instead")
    for incarnation in incarnations:
        if incarnation.coverage.missing:
            warn(_missing_text(incarnation, has_times=selection.has_times))
    return Job(
        source,
        target,
        make_plan(incarnations, selection),
        sum(incarnation.coverage.missing for incarnation in incarnations),
    )


def _missing_text(incarnation: TopicIncarnation, *, has_times: bool) -> str:
    coverage = incarnation.coverage
    why = "they expired before they were archived" + (", or have other time stamps" if has_times else "")
    return (
        f"the archive does not contain {coverage.missing:,} of the messages of '{incarnation.topic}' between offsets "
        f"{coverage.first} and {coverage.stop - 1}: {why}."
    )


def _write_id(folder: str, job: Job, topic_id: int, *, again: bool) -> str:
    """The same id for the same messages into the same topic. A topic that was created again is another topic."""
    if again:
        return f"restore-{uuid.uuid4().hex}"
    selection = job.plan.selection
    times = (selection.since_us, selection.until_us)
    parts = (_identity(folder), job.source, *times, selection.first, selection.stop)
    digest = hashlib.sha256(msgspec.json.encode((*parts, job.target, topic_id)))
    return f"restore-{digest.hexdigest()[:32]}"


def _identity(folder: str) -> str:
    """The archive, by any of its paths."""
    root = archive_root(folder)
    return root if is_object_url(root) else os.path.realpath(root)


# The broker.


def _targets(client: Client, names: Sequence[str], retain_ms: int | None) -> dict[str, TopicInfo]:
    """Check that all target topics exist and keep messages. With a retention, missing topics are created.

    Raises TopicUnknown, PipelineInvalid."""
    found = {info.name: info for info in client.topics()}
    absent = [name for name in names if name not in found]
    if absent and retain_ms is None:
        raise errors.TopicUnknown(f"topic '{absent[0]}' does not exist; use create (--create)")
    for name in absent:
        client.create_topic(name, retain_ms=retain_ms or 0)
    if absent:
        found = {info.name: info for info in client.topics()}
    for name in names:
        info = found[name]
        if not (info.subscriptions or info.retain_ms or info.retain_bytes):
            raise errors.PipelineInvalid(
                f"topic '{name}' has neither a subscription nor a retention, so it would keep no messages: subscribe "
                f"to it first, or give it a retention"
            )
    return {name: found[name] for name in names}


def _sink_settings(broker: Broker, target: str, write_id: str) -> dict[str, str]:
    settings = {"topic": target, "timestamps": "keep", "schemaVersions": "keep"}
    return {**broker.options, **settings, "writeId": write_id}


def _is_done(client: Client, sink: Mapping[str, str]) -> bool:
    """Whether the broker knows this write. Asks with a commit of a stage that does not exist, which changes nothing."""
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


def _write(
    spark: SparkSession, client: Client, broker: Broker, job: Job, write_id: str, reporter: Reporter
) -> Restored:
    from pyspark.errors import PySparkException

    from oncemq.spark.lake.job_progress import report_progress
    from oncemq.spark.pipeline.spark_errors import explain

    end_before = _end(client, job.target)
    with tempfile.TemporaryDirectory(prefix="oncemq-restore-") as folder:
        plan = os.path.join(folder, "plan.json")
        with open(plan, "wb") as file:
            file.write(msgspec.json.encode(job.plan))
        try:
            with report_progress(
                spark, f"restore into '{job.target}'", [part.count for part in job.plan.parts], reporter
            ):
                _save(spark, plan, _sink_settings(broker, job.target, write_id))
        except PySparkException as error:
            raise explain(error) from error
    # If the topic grew by exactly our messages, no other producer wrote to it.
    is_only_writer = _end(client, job.target) - end_before == job.plan.count
    return _restored(job, write_id, first_offset=end_before if is_only_writer else None)


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
