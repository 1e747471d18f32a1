"""Bounds that are constants of the code, made small for a run: with the real ones a tick or a take would need more
room than the simulation's segments have, and the ways in which the rest comes later would never be gone."""

from __future__ import annotations

from oncemq.broker import round
from oncemq.engine import engine
from oncemq.engine.decide import settles, takes, ticks
from oncemq.engine.state import shared_subscription

SMALL: tuple[tuple[object, str, int], ...] = (
    (ticks, "EXPIRED_PER_TICK_MAX", 6),
    (ticks, "BATCHES_PER_TICK_MAX", 3),
    (ticks, "NAMED_PER_TICK_MAX", 2),
    (round, "TICK_BYTES_MAX", 4 * 1024),
    (engine, "SEEK_BYTES_MAX", 1024),
    (takes, "LOOKS_MAX", 12),
    (takes, "RANGES_MAX", 8),
    (settles, "RANGES_MAX", 8),
    (shared_subscription, "MEMBER_IDLE_LEASES", 2),
    (shared_subscription, "MEMBER_IDLE_MS_MIN", 200),
)
