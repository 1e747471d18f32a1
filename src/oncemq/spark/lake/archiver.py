"""Archives topics: a pipeline whose target has a row per message and a folder per topic and day.

Its durable subscription keeps the messages that are not archived yet in the broker. Messages are acked when they are
archived and the checkpoint contains them. Then the broker may delete them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from oncemq.protocol import errors
from oncemq.protocol.patterns import matches
from oncemq.spark.broker import Broker, find_broker
from oncemq.spark.lake import layout
from oncemq.spark.lake.schemas import SchemaKeeper
from oncemq.spark.pipeline.model import MESSAGE_COLUMNS, MESSAGE_PREFIX, Pipeline, Source, Transform, Trigger, Value
from oncemq.spark.pipeline.pipeline_file import ensure_valid
from oncemq.spark.pipeline.progress import Reporter, SilentReporter, Summary
from oncemq.spark.source.offsets import parse_offsets
from oncemq.spark.targets.declarations import DeltaTarget, ParquetTarget

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: The size of a micro-batch. The broker can delete the messages of one while the next one is archived.
MESSAGES_PER_TRIGGER = 1_000_000
_DAY_MS = 86_400_000


class ArchiveSettings(TypedDict, total=False):
    """The settings of `archive_pipeline`, which has their defaults."""

    topic: str
    topics: Sequence[str]
    pattern: str
    format: str
    subscription: str
    checkpoint: str
    every: str
    ack_last: bool
    max_per_trigger: int
    on_loss: Literal["fail", "skip"]


def archive(
    to: str,
    *,
    url: str = "",
    context: str = "",
    token_file: str = "",
    tls: bool | str = "",
    session: SparkSession | None = None,
    master: str = "local[*]",
    conf: Mapping[str, object] | None = None,
    reporter: Reporter | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
    **settings: Unpack[ArchiveSettings],
) -> Summary:
    """Archive topics in a folder, each message once. Run it again to archive new messages.

    >>> archive("/lake/orders", topic="orders", ack_last=True).rows
    120000

    Give exactly one of `topic`, `topics` and `pattern`. `format` is `parquet` or `delta` ("" = the format of the
    folder, or Parquet if it is new). With `every`, such as `5s`, it continues until `is_stopping` returns True. The
    names of subscription and checkpoint are stored in the folder; to choose a checkpoint, give both. `url`, `context`,
    `token_file` and `tls` are those of `run`.

    The last micro-batch of a run is acked by the next run that has new messages, or, with `ack_last`, by this run. Then
    only the archive has it, and a checkpoint that was reset can't read it again.
    """
    from oncemq.spark.pipeline.runner import run

    pipeline = archive_pipeline(to, **settings)
    broker = find_broker(url=url, context=context, token_file=token_file, tls=tls)
    keeper = keep_schemas(to, pipeline, broker)(reporter or SilentReporter())
    return run(
        pipeline,
        **broker.arguments,
        session=session,
        master=master,
        conf=conf,
        reporter=keeper,
        is_stopping=is_stopping,
    )


def keep_schemas(to: str, pipeline: Pipeline, broker: Broker) -> Callable[[Reporter], Reporter]:
    """Return what makes a reporter that also stores the schemas of the topics in the archive."""
    source = pipeline.source
    assert source is not None, "an archive has one source"
    return lambda reporter: SchemaKeeper(to, source, broker, reporter)


def archive_pipeline(
    to: str,
    *,
    topic: str = "",
    topics: Sequence[str] = (),
    pattern: str = "",
    format: str = "",
    subscription: str = "",
    checkpoint: str = "",
    every: str = "",
    ack_last: bool = False,
    max_per_trigger: int = MESSAGES_PER_TRIGGER,
    on_loss: Literal["fail", "skip"] = "fail",
) -> Pipeline:
    """Declare the pipeline of an archive. Raises PipelineInvalid."""
    for name in (topic, *topics):
        layout.refuse_topic(name)
    kind = DeltaTarget if layout.choose_format(to, format) == "delta" else ParquetTarget
    subscription, checkpoint = layout.archive_names(to, subscription, checkpoint)
    pipeline = Pipeline(
        name="archive",
        source=Source(
            topic=topic,
            topics=tuple(topics),
            pattern=pattern,
            subscription=subscription,
            max_per_trigger=max_per_trigger,
            on_loss=on_loss,
            columns=MESSAGE_COLUMNS,  # type: ignore[arg-type]
        ),
        value=Value(format="bytes"),
        transform=Transform(function=archive_rows),
        target=kind(path=to, partition_by=layout.PARTITION_BY, evolve="add"),
        trigger=Trigger(every=every),
        checkpoint=checkpoint,
        ack_last=ack_last,
    )
    ensure_valid(pipeline)
    _refuse_fewer_topics(to, pipeline)
    return pipeline


def _refuse_fewer_topics(folder: str, pipeline: Pipeline) -> None:
    """Refuse a run without a topic of the checkpoint. The source would take it for a deleted topic."""
    source = pipeline.source
    assert source is not None, "an archive has one source"
    for topic in _topics_in(pipeline.checkpoint):
        if not (matches(source.pattern.split("."), topic) if source.pattern else topic in source.names):
            raise errors.PipelineInvalid(
                f"subscription '{source.subscription}' of {folder} also archives '{topic}': add this topic, or give an "
                "archive of other topics a subscription of its own"
            )


def _topics_in(checkpoint: str) -> list[str]:
    """The topics in the last entry of a checkpoint; none if it can't be read, which Spark will report."""
    folder = os.path.join(checkpoint, "offsets")
    try:
        last = max(int(name) for name in os.listdir(folder) if name.isdecimal())
        with open(os.path.join(folder, str(last)), encoding="utf-8") as file:
            return list(parse_offsets(file.read().splitlines()[-1]).topics)
    except (OSError, ValueError, LookupError, TypeError):
        return []


def archive_rows(messages: DataFrame) -> DataFrame:
    """Convert messages to rows of the archive."""
    from pyspark.sql import functions as F

    columns = {name: F.col(MESSAGE_PREFIX + name) for name in MESSAGE_COLUMNS} | {"value": F.col("value")}
    # The key is `TOPIC_ID-OFFSET`, with a hexadecimal id.
    digits = F.substring_index(columns["idempotency_key"], "-", 1)
    columns["topic_id"] = F.conv(digits, 16, 10).cast("bigint")
    columns["topic"] = _check_folder_name(columns["topic"])
    # Computed without the session's time zone.
    day = F.floor(F.unix_millis(columns["timestamp"]) / F.lit(_DAY_MS)).cast("int")
    columns["date"] = F.date_from_unix_date(day)
    return messages.select(*(columns[name].alias(name) for name in layout.COLUMNS))


def _check_folder_name(topic: Column) -> Column:
    """Raises an error for a topic whose name can't be a folder. With a pattern, the topics are not known before."""
    from pyspark.sql import functions as F

    escaped = F.octet_length(F.regexp_replace(topic, "[A-Za-z0-9._~-]", ""))
    is_too_long = F.octet_length(topic) + F.lit(2) * escaped > layout.FOLDER_BYTES_MAX - len("topic=")
    text = F.concat(F.lit("topic '"), topic, F.lit("' can't be archived: no folder can have its name"))
    is_wrong = (topic == layout.NULL_FOLDER) | ((F.octet_length(topic) > layout.FOLDER_BYTES_MAX // 4) & is_too_long)
    return F.when(is_wrong, F.raise_error(text).cast("string")).otherwise(topic)
