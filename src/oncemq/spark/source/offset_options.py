"""The options that say where a read starts and ends. The order of precedence is that of Spark's Kafka source: one time
for all topics, then times by topic, then offsets."""

from __future__ import annotations

from oncemq.protocol import errors
from oncemq.spark.raw_options import RawOptions
from oncemq.spark.source.offset_spec import (
    EARLIEST,
    LATEST,
    TopicOffsets,
    parse_time,
    parse_topic_offsets,
    parse_topic_times,
)
from oncemq.spark.source.topic_selection import TopicSelection

_STRATEGY = "startingOffsetsByTimestampStrategy"
STARTING = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", _STRATEGY)
ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def parse_start(options: RawOptions, selection: TopicSelection, *, is_stream: bool) -> TopicOffsets:
    """Raises SettingInvalid."""
    is_required = options.choice(_STRATEGY, ("error", "latest")) == "error"
    start = _parse(options, selection, "starting", LATEST if is_stream else EARLIEST, is_required=is_required)
    if is_stream and selection.pattern and start not in (TopicOffsets(LATEST), TopicOffsets(EARLIEST)):
        raise errors.SettingInvalid(
            "with a pattern, a stream starts at 'earliest' or 'latest'; to start at a time or at offsets, select the "
            "topics with 'topics' or 'regex'"
        )
    return start


def parse_end(options: RawOptions, selection: TopicSelection) -> TopicOffsets:
    """Raises SettingInvalid."""
    return _parse(options, selection, "ending", LATEST, is_required=False)


def _parse(
    options: RawOptions, selection: TopicSelection, side: str, default: str, *, is_required: bool
) -> TopicOffsets:
    for_all, by_topic, plain = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    offsets = parse_topic_offsets(options.text(plain), plain, default)
    _refuse_unread_topics(plain, offsets, selection)
    if by_topic in options:
        times = parse_topic_times(options.text(by_topic), by_topic, is_required=is_required)
        # Topics without a time start or end as the offsets say.
        offsets = TopicOffsets(offsets.default, {**offsets.by_topic, **times})
        _refuse_unread_topics(by_topic, offsets, selection)
    if for_all in options:
        return TopicOffsets(parse_time(options.text(for_all), for_all, is_required=is_required))
    return offsets


def _refuse_unread_topics(option: str, offsets: TopicOffsets, selection: TopicSelection) -> None:
    """Refuse offsets for a topic that is not read: with a misspelled name, other messages would be read."""
    is_read = selection.matcher()
    for topic in offsets.by_topic:
        if not is_read(topic):
            raise errors.SettingInvalid(f"'{option}' names topic '{topic}', which is not read")
