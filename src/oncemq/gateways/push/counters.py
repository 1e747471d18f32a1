"""What happened, by name: counted always, and said in the log now and then."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("oncemq.push")

#: One kind of trouble is logged so often at the most.
_LOG_EVERY_S = 1.0


class Counters:
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._said: dict[str, tuple[float, int]] = {}

    def __getitem__(self, name: str) -> int:
        return self.counts.get(name, 0)

    def add(self, name: str, count: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + count

    def trouble(self, name: str, text: str, count: int = 1, level: int = logging.WARNING) -> None:
        """Count it, and say so: once a second at the most, with how many of the kind came since it was said last."""
        self.add(name, count)
        now_s = time.monotonic()
        said_s, said_count = self._said.get(name, (-_LOG_EVERY_S, 0))
        if now_s - said_s >= _LOG_EVERY_S:
            total = self.counts[name]
            self._said[name] = (now_s, total)
            # Peers' own words may be in it: they must not pose as lines of the log.
            text = text if text.isprintable() else ascii(text)
            log.log(level, "%s (%s: %d, in all %d)", text, name, total - said_count, total)
