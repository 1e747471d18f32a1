"""Small values for constants of the code. With the real values a tick or a take would need more space than the segments
of the simulation have, and the code that defers the rest to the next round would never run."""

from __future__ import annotations

from oncemq.broker import round
from oncemq.broker.network import listeners
from oncemq.broker.requests import request_queue, work
from oncemq.client.core.commands import wire
from oncemq.client.runtime import stream as client_stream
from oncemq.engine import event_bytes
from oncemq.engine.decide import lists, ticks
from oncemq.engine.decide.subscriptions import leases, takes
from oncemq.engine.state import shared_subscription
from oncemq.net.stream import connection, listener
from oncemq.protocol import stream
from tests.simulation.environment.internet import BUFFERS_MAX

SMALL: tuple[tuple[object, str, float], ...] = (
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
    (lists, "_HIDDEN_MAX", 3),
    (takes, "SCAN_MAX", 12),
    (takes, "RANGES_MAX", 8),
    (leases, "RANGES_MAX", 8),
    (shared_subscription, "MEMBER_IDLE_LEASES", 2),
    (shared_subscription, "MEMBER_IDLE_MS_MIN", 200),
    (wire, "PROGRESS_BYTES", 64),
    (stream, "_LARGE_BYTES", 500),
    (stream, "_COPY_BELOW_BYTES", 100),
    (stream, "_JOIN_BELOW_BYTES", 200),
    (client_stream, "RECEIVE_BYTES", 400),
    (client_stream, "_BUFFERS_MAX", BUFFERS_MAX),
    (client_stream, "_PAUSE_MS_MIN", 5.0),
    (client_stream, "_PAUSE_MS_MAX", 50.0),
    (client_stream, "_STABLE_MS", 100.0),
    (connection, "RECEIVE_BYTES", 400),
    (connection, "_TURN_BYTES_MAX", 400),
    (connection, "_BUFFERS_MAX", BUFFERS_MAX),
    (listener, "_ACCEPTS_PER_TURN", 2),
    (listener, "_PAUSE_S", 0.05),
    (listener, "_OPENING_S", 0.3),
    (listener, "_CHECK_EVERY_S", 0.05),
    (listener, "_SMALL_BYTES", 500),
    (listeners, "ARRIVALS_MAX", 4),
    (listeners, "ARRIVAL_BYTES_MAX", 4_000),
    (listeners, "REQUEST_HEADER_BYTES_MAX", 10_000),
    (listeners, "_FRAMING_BYTES", 1_000),
)
