"""The options of `format("oncemq")`, checked before anything is read or written. Does not import Spark."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from oncemq.protocol import errors
from oncemq.spark.broker import REACHING, Broker, find_broker
from oncemq.spark.option_names import KAFKA_SINK, KAFKA_SOURCE, STREAM_SINK
from oncemq.spark.raw_options import RawOptions
from oncemq.spark.schema import NAMES, SPARK_TYPES
from oncemq.spark.source.limit_options import BATCH_LIMITS, STREAM_LIMITS, BatchLimits, TaskLimits, parse_limits
from oncemq.spark.source.offset_options import ENDING, STARTING, parse_end, parse_start
from oncemq.spark.source.offset_spec import TopicOffsets
from oncemq.spark.source.topic_selection import SELECTING, TopicSelection, parse_selection
from oncemq.spark.typed.options import SCHEMA_OPTIONS, TOPIC, TYPED_SOURCE, TypedOptions, parse_typed

#: The default retention of topics that the sink creates.
RETAIN = "7d"
_TIMEOUT = "30s"


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    broker: Broker
    selection: TopicSelection
    subscription: str = ""
    start: TopicOffsets
    end: TopicOffsets
    #: The size of a micro-batch.
    batch_limits: BatchLimits = BatchLimits()
    #: The number and the size of the tasks.
    task_limits: TaskLimits = TaskLimits()
    fail_on_loss: bool = True
    columns: tuple[str, ...] = NAMES
    #: The columns of a schema instead of the value; None = the columns of messages.
    typed: TypedOptions | None = None
    #: Where Spark stores the query's progress. It is made durable before messages are acked; "" = it is not known.
    checkpoint: str = ""
    timeout_s: float = 30.0

    @property
    def description(self) -> str:
        """The topics and the subscription. The progress of a query names its sources by it."""
        return f"{self.selection}, subscription {self.subscription}"


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    broker: Broker
    #: "" = the column `topic` of each row names its topic.
    topic: str = ""
    create: bool = False
    #: The retention of a topic that the sink creates. Without it, a topic without subscriptions would keep nothing.
    retain_ms: int = 0
    #: Store the time stamps of the rows instead of the broker's.
    keeps_times: bool = False
    write_id: str = ""
    write_number: int = 0
    #: The rows have the columns of the topic's schema. `schema_version` 0 = of the newest version.
    is_typed: bool = False
    schema_version: int = 0
    #: The column `schema_version` says which version of the topic's schema each value matches.
    keeps_versions: bool = False
    #: Where Spark stores what the query has planned; "" = it is not known.
    checkpoint: str = ""
    timeout_s: float = 30.0


_SHARED = (*REACHING, "timeout")
#: Options that have no meaning for a batch read.
STREAM_ONLY = ("subscription", "checkpointLocation", *STREAM_LIMITS)
_READING = (*STARTING, *ENDING, *BATCH_LIMITS, "failOnDataLoss", "columns", *TYPED_SOURCE)
SOURCE = (*_SHARED, *SELECTING, *STREAM_ONLY, *_READING)
SINK = (
    *_SHARED,
    "topic",
    "create",
    "retain",
    "timestamps",
    *SCHEMA_OPTIONS,
    "schemaVersions",
    "writeId",
    "writeNumber",
    "checkpointLocation",
)


def source_options(raw: Mapping[str, str], *, is_stream: bool | None) -> SourceOptions:
    """Parse the options of a source. `is_stream` is None while it is not known: Spark asks for the columns first.

    Raises SettingInvalid, which says what to write instead."""
    options = RawOptions(raw, SOURCE, kafka=KAFKA_SOURCE)
    selection = parse_selection(options)
    if is_stream:
        _check_stream(options)
    elif is_stream is False:
        for name in STREAM_ONLY:
            if name in options:
                raise errors.SettingInvalid(f"'{name}' is for streams; leave it out of a batch read")
    batch_limits, task_limits = parse_limits(options)
    typed = parse_typed(options)
    return SourceOptions(
        broker=_broker(options),
        selection=selection,
        subscription=options.text("subscription"),
        start=parse_start(options, selection, is_stream=bool(is_stream)),
        end=parse_end(options, selection),
        batch_limits=batch_limits,
        task_limits=task_limits,
        fail_on_loss=options.flag("failOnDataLoss", True),
        columns=_columns(options, () if typed is not None else NAMES),
        typed=typed,
        checkpoint=options.text("checkpointLocation"),
        timeout_s=options.duration_ms("timeout", _TIMEOUT) / 1000,
    )


def _check_stream(options: RawOptions) -> None:
    if not options.text("subscription"):
        raise errors.SettingInvalid(
            "a stream needs the option 'subscription': the name of the durable subscription that keeps the messages "
            'which its checkpoint still needs, e.g. .option("subscription", "my-query")'
        )
    for name in ENDING:
        if name in options:
            raise errors.SettingInvalid(f"'{name}' is for batch reads; a stream has no end")


def sink_options(raw: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Parse the options of a sink. Raises SettingInvalid, which says what to write instead."""
    options = RawOptions(raw, SINK, sparks=STREAM_SINK if is_stream else (), kafka=KAFKA_SINK)
    write_id = options.text("writeId")
    if is_stream and write_id:
        raise errors.SettingInvalid(
            "'writeId' is for batch writes; a stream is identified by its checkpoint, so leave 'writeId' out"
        )
    if "writeNumber" in options and not write_id:
        raise errors.SettingInvalid("'writeNumber' counts the writes of a 'writeId', and no 'writeId' is given")
    create = options.flag("create", False)
    if "retain" in options and not create:
        raise errors.SettingInvalid("'retain' applies to topics that are created with create=true")
    return SinkOptions(
        broker=_broker(options),
        topic=options.text("topic"),
        create=create,
        retain_ms=options.duration_ms("retain", RETAIN),
        keeps_times=options.choice("timestamps", ("broker", "keep")) == "keep",
        write_id=write_id,
        write_number=options.number("writeNumber"),
        is_typed=_is_typed(options),
        schema_version=options.number("schemaVersion"),
        keeps_versions=options.choice("schemaVersions", ("check", "keep")) == "keep",
        checkpoint=options.text("checkpointLocation"),
        timeout_s=options.duration_ms("timeout", _TIMEOUT) / 1000,
    )


def _is_typed(options: RawOptions) -> bool:
    kind = options.text("schema")
    if kind not in ("", TOPIC):
        raise errors.SettingInvalid(f"'schema' of a sink must be '{TOPIC}', not {kind!r}")
    if not kind and "schemaVersion" in options:
        raise errors.SettingInvalid("'schemaVersion' needs the option 'schema', as in .option(\"schema\", \"topic\")")
    if kind and not options.text("topic"):
        raise errors.SettingInvalid("schema=topic needs the option 'topic': the rows are written to one topic")
    if kind and options.flag("create", False):
        raise errors.SettingInvalid("a topic that the sink creates has no schema: create it with `oncemq schema put`")
    return bool(kind)


def _broker(options: RawOptions) -> Broker:
    return find_broker(**{field: options.text(option) for option, field in REACHING.items()})


def _columns(options: RawOptions, default: tuple[str, ...]) -> tuple[str, ...]:
    chosen = tuple(options.names("columns")) if options.text("columns") else default
    for name in chosen:
        if name not in SPARK_TYPES:
            known = ", ".join(SPARK_TYPES)
            raise errors.SettingInvalid(f"'columns': there is no column '{name}'; the columns are {known}")
    if len(set(chosen)) != len(chosen):
        raise errors.SettingInvalid("'columns' names a column twice")
    return chosen
