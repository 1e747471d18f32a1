"""The selection of messages of an archive."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from oncemq.protocol import errors

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """All bounds that are set must hold. Lower bounds are inclusive, upper bounds are exclusive."""

    #: "" = all topics of the archive.
    topic: str = ""
    since_us: int | None = None
    until_us: int | None = None
    first: int = 0
    stop: int | None = None

    @property
    def has_times(self) -> bool:
        return self.since_us is not None or self.until_us is not None

    @property
    def has_offsets(self) -> bool:
        return self.first > 0 or self.stop is not None

    def may_match(self, topic: str, date: str) -> bool:
        """Whether a folder may contain selected messages."""
        if self.topic and topic != self.topic:
            return False
        if self.since_us is not None and date < _day(self.since_us):
            return False
        return self.until_us is None or date <= _day(self.until_us)


def make_selection(
    *, topic: str = "", since: datetime | None = None, until: datetime | None = None, offsets: str = ""
) -> Selection:
    """Raises PipelineInvalid for bounds that are invalid or select nothing."""
    first, stop = _bounds(offsets)
    chosen = Selection(topic=topic, since_us=_us(since), until_us=_us(until), first=first, stop=stop)
    if chosen.since_us is not None and chosen.until_us is not None and chosen.since_us >= chosen.until_us:
        raise errors.PipelineInvalid("these times select nothing: the first is not before the second")
    return chosen


def _bounds(offsets: str) -> tuple[int, int | None]:
    first, colon, stop = offsets.partition(":")
    if not offsets:
        return 0, None
    is_good = bool(colon) and all(not text or (text.isascii() and text.isdecimal()) for text in (first, stop))
    bounds = (int(first or 0), int(stop) if stop else None) if is_good else (0, 0)
    if bounds[1] is not None and bounds[0] >= bounds[1]:
        text = f"{offsets!r} is not a range of offsets; 100:200 is 100 to 199, 100: is all from 100"
        raise errors.PipelineInvalid(text)
    return bounds


def _us(time: datetime | None) -> int | None:
    if time is None:
        return None
    if time.tzinfo is None:
        raise errors.PipelineInvalid(f"{time} has no time zone, so it is ambiguous: add one")
    return (time - _EPOCH) // timedelta(microseconds=1)


def _day(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).date().isoformat()
