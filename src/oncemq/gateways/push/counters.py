"""Counters by name. Problems are also logged, with a limited rate."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("oncemq.push")

#: Minimum time between two log lines of the same kind.
_LOG_EVERY_S = 1.0


class Counters:
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        #: name → when it was last logged, and its count at that time
        self._logged: dict[str, tuple[float, int]] = {}

    def __getitem__(self, name: str) -> int:
        return self.counts.get(name, 0)

    def add(self, name: str, count: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + count

    def report(self, name: str, text: str, count: int = 1, level: int = logging.WARNING) -> None:
        """Count a problem and log it: at most once a second per name, with the count since the last log line."""
        self.add(name, count)
        now_s = time.monotonic()
        logged_s, logged_count = self._logged.get(name, (-_LOG_EVERY_S, 0))
        if now_s - logged_s >= _LOG_EVERY_S:
            total = self.counts[name]
            self._logged[name] = (now_s, total)
            # The text may contain input of peers, which must not look like further log lines.
            text = text if text.isprintable() else ascii(text)
            log.log(level, "%s (%s: %d, total %d)", text, name, total - logged_count, total)
