"""Bounds that are constants of the code, made small for a run: with the real ones a tick or a take would need more
room than the simulation's segments have, and the ways in which the rest comes later would never be gone."""

from __future__ import annotations

from oncemq.broker import deciding
from oncemq.engine import engine, sharing, taking, tasks, ticking

SMALL: tuple[tuple[object, str, int], ...] = (
    (ticking, "EXPIRED_PER_TICK_MAX", 6),
    (ticking, "BATCHES_PER_TICK_MAX", 3),
    (ticking, "NAMED_PER_TICK_MAX", 2),
    (deciding, "TICK_BYTES_MAX", 4 * 1024),
    (engine, "SEEK_BYTES_MAX", 1024),
    (taking, "LOOKS_MAX", 12),
    (taking, "RANGES_MAX", 8),
    (tasks, "RANGES_MAX", 8),
    (sharing, "MEMBER_IDLE_LEASES", 2),
    (sharing, "MEMBER_IDLE_MS_MIN", 200),
)
