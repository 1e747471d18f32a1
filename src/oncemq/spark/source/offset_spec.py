"""Where a read starts or ends, as a user writes it: an offset, a time, `earliest` or `latest`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

import msgspec

from oncemq.protocol import errors

EARLIEST = "earliest"
LATEST = "latest"


class Timestamp(msgspec.Struct, frozen=True, gc=False):
    """The first message that was stored at this time or later."""

    time_ms: int


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
    by_topic = parse_json(text, option)
    assert isinstance(by_topic, dict)
    return TopicOffsets(
        default, {topic: _parse_offset(raw, f"{option} of '{topic}'") for topic, raw in by_topic.items()}
    )


def parse_json(text: str, option: str) -> object:
    """Raises SettingInvalid."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise errors.SettingInvalid(f"'{option}' is not valid JSON: {error}") from None


def _parse_offset(raw: object, what: str) -> OffsetSpec:
    if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
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
