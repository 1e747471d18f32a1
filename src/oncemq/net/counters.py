"""Counters by name. Problems are also logged, with a limited rate."""

from __future__ import annotations

import logging
import time

#: Minimum time between two log lines of the same kind.
_LOG_EVERY_S = 1.0


class Counters:
    def __init__(self, log: logging.Logger, log_every_s: float = _LOG_EVERY_S) -> None:
        self.counts: dict[str, int] = {}
        self._log = log
        self._log_every_s = log_every_s
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
        logged_s, logged_count = self._logged.get(name, (-self._log_every_s, 0))
        if now_s - logged_s >= self._log_every_s:
            total = self.counts[name]
            self._logged[name] = (now_s, total)
            # The text may contain input of peers, which must not look like further log lines.
            text = text if text.isprintable() else ascii(text)
            self._log.log(level, "%s (%s: %d, total %d)", text, name, total - logged_count, total)
