"""The messages that statistics are about: topics, and a span of time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from oncemq.protocol.patterns import matcher


class StatsSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Either `topics` or `pattern` is set. The times have a zone: the first is inclusive, the second is exclusive."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    since: datetime | None = None
    until: datetime | None = None

    @property
    def source_options(self) -> dict[str, str]:
        """The options of `format("oncemq")`."""
        options = {"pattern": self.pattern} if self.pattern else {"topics": json.dumps(self.topics)}
        if self.since is not None:
            options["startingOffsets"] = self.since.astimezone(UTC).isoformat()
        if self.until is not None:
            options["endingOffsets"] = self.until.astimezone(UTC).isoformat()
        return options

    @property
    def since_ms(self) -> int | None:
        return None if self.since is None else round(self.since.timestamp() * 1000)

    @property
    def until_ms(self) -> int | None:
        return None if self.until is None else round(self.until.timestamp() * 1000)

    def names(self, known: Iterable[str]) -> list[str]:
        """Those of the known topics that are selected."""
        if self.pattern:
            is_match = matcher(self.pattern)
            return sorted(name for name in known if is_match(name))
        return sorted(set(known) & set(self.topics))

    def overlaps(self, start_ms: float, stop_ms: float) -> bool:
        """Whether some of the times from `start_ms` to `stop_ms` are selected."""
        since_ms, until_ms = self.since_ms, self.until_ms
        return (since_ms is None or stop_ms > since_ms) and (until_ms is None or start_ms < until_ms)
