"""The options of `format("oncemq")`, checked before anything is read or written. Does not import Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.patterns import matches, refuse_pattern
from oncemq.spark.raw_options import RawOptions
from oncemq.spark.schema import NAMES
from oncemq.spark.source.offset_spec import EARLIEST, LATEST, TopicOffsets, parse_topic_offsets

DEFAULT_URL = "tcp://127.0.0.1:5555"
#: The default retention of topics that the sink creates.
RETAIN = "7d"
_TIMEOUT = "30s"


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    #: Either topics or a pattern is set.
    topics: tuple[str, ...] = ()
    pattern: str = ""
    subscription: str = ""
    start: TopicOffsets
    end: TopicOffsets
    #: The maximum number of messages in one micro-batch; 0 = no limit.
    rows_max: int = 0
    #: The number of tasks that read in parallel; 0 = one per core of the driver.
    partitions: int = 0
    fail_on_loss: bool = True
    columns: tuple[str, ...] = NAMES
    #: Where Spark stores the query's progress. It is made durable before messages are acked; "" = it is not known.
    checkpoint: str = ""
    timeout_s: float = 30.0


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    #: "" = the column `topic` of each row names its topic.
    topic: str = ""
    create: bool = False
    #: The retention of a topic that the sink creates. Without it, a topic without subscriptions would keep nothing.
    retain_ms: int = 0
    #: Store the time stamps of the rows instead of the broker's.
    keeps_times: bool = False
    write_id: str = ""
    write_number: int = 0
    #: Where Spark stores what the query has planned; "" = it is not known.
    checkpoint: str = ""
    timeout_s: float = 30.0


_SHARED = ("url", "timeout", "checkpointLocation")
_SOURCE = (
    *_SHARED,
    "topic",
    "topics",
    "pattern",
    "subscription",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "partitions",
    "failOnDataLoss",
    "columns",
)
_SINK = (*_SHARED, "topic", "create", "retain", "timestamps", "writeId", "writeNumber")


def source_options(raw: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Parse the options of a source. Raises SettingInvalid, which says what to write instead."""
    options = RawOptions(raw, _SOURCE)
    topics, pattern = _topics(options)
    subscription = options.text("subscription")
    if is_stream and not subscription:
        raise errors.SettingInvalid(
            "a stream needs the option 'subscription': the name of the durable subscription that keeps the messages "
            'which its checkpoint still needs, e.g. .option("subscription", "my-query")'
        )
    if is_stream and "endingOffsets" in options:
        raise errors.SettingInvalid("'endingOffsets' is for batch reads; a stream has no end")
    start = parse_topic_offsets(options.text("startingOffsets"), "startingOffsets", LATEST if is_stream else EARLIEST)
    if is_stream and pattern and start not in (TopicOffsets(LATEST), TopicOffsets(EARLIEST)):
        raise errors.SettingInvalid("with a pattern, 'startingOffsets' of a stream must be 'earliest' or 'latest'")
    end = parse_topic_offsets(options.text("endingOffsets"), "endingOffsets", LATEST)
    for option, offsets in (("startingOffsets", start), ("endingOffsets", end)):
        _refuse_unread_topics(option, offsets, topics, pattern)
    return SourceOptions(
        url=broker_url(options.text("url")),
        topics=topics,
        pattern=pattern,
        subscription=subscription,
        start=start,
        end=end,
        rows_max=options.number("maxOffsetsPerTrigger"),
        partitions=options.number("partitions"),
        fail_on_loss=options.flag("failOnDataLoss", True),
        columns=_columns(options),
        checkpoint=options.text("checkpointLocation"),
        timeout_s=options.duration_ms("timeout", _TIMEOUT) / 1000,
    )


def sink_options(raw: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Parse the options of a sink. Raises SettingInvalid, which says what to write instead."""
    options = RawOptions(raw, _SINK)
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
    times = options.text("timestamps") or "broker"
    if times not in ("broker", "keep"):
        raise errors.SettingInvalid(f"'timestamps' must be 'broker' or 'keep', not {times!r}")
    return SinkOptions(
        url=broker_url(options.text("url")),
        topic=options.text("topic"),
        create=create,
        retain_ms=options.duration_ms("retain", RETAIN),
        keeps_times=times == "keep",
        write_id=write_id,
        write_number=options.number("writeNumber"),
        checkpoint=options.text("checkpointLocation"),
        timeout_s=options.duration_ms("timeout", _TIMEOUT) / 1000,
    )


def broker_url(url: str) -> str:
    """The URL, ONCEMQ_URL or the default. Raises SettingInvalid for a broker that only its own process can reach."""
    url = url or os.environ.get("ONCEMQ_URL", "") or DEFAULT_URL
    for part in url.split(","):
        if part.strip().startswith(("file:", "memory:")):
            raise errors.SettingInvalid(
                f"'{part.strip()}' is a broker inside one process, and Spark's workers are other processes that can't "
                "reach it; start a broker with `oncemq serve` (--data takes the folder) and use its tcp:// address"
            )
    return url


def _topics(options: RawOptions) -> tuple[tuple[str, ...], str]:
    """The topics, or the pattern."""
    given = [name for name in ("topic", "topics", "pattern") if options.text(name)]
    if len(given) != 1:
        what = _quoted(given) + " are given" if given else "none of them is given"
        if not given and options.unknown:
            what += f", and OnceMQ does not know the given {_quoted(options.unknown)}"
        raise errors.SettingInvalid(f"exactly one of the options 'topic', 'topics' and 'pattern' is needed; {what}")
    text = options.text(given[0])
    if given[0] == "topic":
        return (text,), ""
    if given[0] == "topics":
        return tuple(dict.fromkeys(options.names("topics"))), ""
    refusal = refuse_pattern(text)
    if refusal is not None:
        raise errors.SettingInvalid(f"'pattern': {refusal.text}")
    return (), text


def _quoted(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)


def _columns(options: RawOptions) -> tuple[str, ...]:
    chosen = tuple(options.names("columns")) if options.text("columns") else NAMES
    for name in chosen:
        if name not in NAMES:
            raise errors.SettingInvalid(f"'columns': there is no column '{name}'; the columns are {', '.join(NAMES)}")
    if len(set(chosen)) != len(chosen):
        raise errors.SettingInvalid("'columns' names a column twice")
    return chosen


def _refuse_unread_topics(option: str, offsets: TopicOffsets, topics: tuple[str, ...], pattern: str) -> None:
    """Refuse offsets for a topic that is not read: with a misspelled name, other messages would be read."""
    for topic in offsets.by_topic:
        if not (matches(pattern.split("."), topic) if pattern else topic in topics):
            raise errors.SettingInvalid(f"'{option}' names topic '{topic}', which is not read")
