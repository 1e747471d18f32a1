"""Where a read starts or ends, as a user writes it: an offset, a time, `earliest` or `latest`.

The forms of Spark's Kafka source are accepted, too: a topic has one partition there, `{"orders": {"0": 23}}`, and -1
and -2 stand for `latest` and `earliest`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec

from oncemq.protocol import errors

EARLIEST = "earliest"
LATEST = "latest"
_KAFKA_NUMBERS = {-1: LATEST, -2: EARLIEST}
#: The number of the only partition of a topic, as Spark's Kafka source writes it.
_PARTITION = "0"
#: The end of the year 9999. A larger number is not one of milliseconds.
_TIME_MS_MAX = 253_402_300_799_999


class Timestamp(msgspec.Struct, frozen=True, gc=False):
    """The first message that was stored at this time or later; the end of the topic if there is none."""

    time_ms: int
    #: If there is no such message, that is an error.
    is_required: bool = False

    def __str__(self) -> str:
        return datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat(timespec="milliseconds")


#: An offset, a time, or one of the words EARLIEST and LATEST.
OffsetSpec = int | str | Timestamp


class TopicOffsets(msgspec.Struct, frozen=True):
    """Where to start or end, for each topic."""

    default: OffsetSpec
    by_topic: Mapping[str, OffsetSpec] = {}

    def of(self, topic: str) -> OffsetSpec:
        return self.by_topic.get(topic, self.default)


def parse_topic_offsets(text: str, option: str, default: str) -> TopicOffsets:
    """Parse the option's text: one value for all topics, or a JSON object by topic. Raises SettingInvalid."""
    text = text.strip() or default
    if not text.startswith("{"):
        return TopicOffsets(_parse_offset(text, option))
    return TopicOffsets(default, _by_topic(text, option, _parse_offset))


def parse_topic_times(text: str, option: str, *, is_required: bool) -> dict[str, OffsetSpec]:
    """Parse a JSON object of times by topic. Raises SettingInvalid."""
    return _by_topic(text, option, lambda raw, what: parse_time(raw, what, is_required=is_required))


def parse_time(raw: object, what: str, *, is_required: bool) -> Timestamp:
    """Parse milliseconds since 1970, or a time with a zone. Raises SettingInvalid."""
    if isinstance(raw, str) and raw.strip().isdecimal():
        raw = int(raw)
    if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw <= _TIME_MS_MAX:
        return Timestamp(raw, is_required)
    timestamp = _parse_timestamp(raw.strip()) if isinstance(raw, str) else None
    if timestamp is None:
        raise errors.SettingInvalid(
            f"{what} must be a number of milliseconds since 1970, or a time with a zone (2026-01-01T00:00:00Z), "
            f"not {raw!r}"
        )
    return Timestamp(timestamp.time_ms, is_required)


def parse_json(text: str, option: str) -> object:
    """Raises SettingInvalid."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise errors.SettingInvalid(f"'{option}' is not valid JSON: {error}") from None


def _by_topic(text: str, option: str, parse: Callable[[object, str], OffsetSpec]) -> dict[str, OffsetSpec]:
    by_topic = parse_json(text, option)
    if not isinstance(by_topic, dict):
        raise errors.SettingInvalid(f"'{option}' must be a JSON object by topic, not {text!r}")
    return {
        topic: parse(_of_partition(raw, topic, option), f"{option} of '{topic}'") for topic, raw in by_topic.items()
    }


def _of_partition(raw: object, topic: str, option: str) -> object:
    if not isinstance(raw, dict):
        return raw
    if list(raw) != [_PARTITION]:
        raise errors.SettingInvalid(
            f"'{option}': a topic has one partition, {_PARTITION}; topic '{topic}' is given {raw}"
        )
    return raw[_PARTITION]


def _parse_offset(raw: object, what: str) -> OffsetSpec:
    if isinstance(raw, int) and not isinstance(raw, bool):
        if raw in _KAFKA_NUMBERS:
            return _KAFKA_NUMBERS[raw]
        if raw >= 0:
            return raw
    if raw in (EARLIEST, LATEST):
        return str(raw)
    if isinstance(raw, str):
        if raw.isdecimal():
            return int(raw)
        timestamp = _parse_timestamp(raw)
        if timestamp is not None:
            return timestamp
    raise errors.SettingInvalid(
        f"{what} must be 'earliest', 'latest', an offset, or a time with a zone (2026-01-01T00:00:00Z), not {raw!r}"
    )


def _parse_timestamp(text: str) -> Timestamp | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    # The driver and the user may be in different time zones, so a time without a zone would be ambiguous.
    return None if time.tzinfo is None else Timestamp(round(time.timestamp() * 1000))
