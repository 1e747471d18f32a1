"""Bounds that are constants of the code, made small for a run: with the real ones a tick or a take would need more
room than the simulation's segments have, and the ways in which the rest comes later would never be gone."""

from __future__ import annotations

from oncemq.broker import round
from oncemq.engine import event_bytes
from oncemq.engine.decide import leases, takes, ticks
from oncemq.engine.state import shared_subscription

SMALL: tuple[tuple[object, str, int], ...] = (
    (ticks, "EXPIRED_PER_TICK_MAX", 6),
    (ticks, "BATCHES_PER_TICK_MAX", 3),
    (ticks, "NAMED_PER_TICK_MAX", 2),
    (round, "TICK_BYTES_MAX", 4 * 1024),
    (event_bytes, "SEEK_BYTES_MAX", 1024),
    (event_bytes, "RANGES_MAX", 8),
    (takes, "SCAN_MAX", 12),
    (takes, "RANGES_MAX", 8),
    (leases, "RANGES_MAX", 8),
    (shared_subscription, "MEMBER_IDLE_LEASES", 2),
    (shared_subscription, "MEMBER_IDLE_MS_MIN", 200),
)
