"""Small values for constants of the code. With the real values a tick or a take would need more space than the segments
of the simulation have, and the code that defers the rest to the next round would never run."""

from __future__ import annotations

from oncemq.broker import round
from oncemq.broker.requests import request_queue, work
from oncemq.client.core.commands import wire
from oncemq.engine import event_bytes
from oncemq.engine.decide import ticks
from oncemq.engine.decide.subscriptions import leases, takes
from oncemq.engine.state import shared_subscription

SMALL: tuple[tuple[object, str, int], ...] = (
    (work, "TURN_UNITS_MAX", 3),
    (work, "ROUND_UNITS_MAX", 7),
    (work, "OVERDRAFT_UNITS_MIN", 3),
    (request_queue, "QUEUE_REQUESTS_MAX", 6),
    (request_queue, "PAYBACK_US_PER_UNIT", 50_000),
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
    (wire, "PROGRESS_BYTES", 64),
)
