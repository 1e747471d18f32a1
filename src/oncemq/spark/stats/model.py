"""The statistics of topics. Times are milliseconds since 1970. A window is identified by its start.

A percentile is the smallest value of a message such that at least that share of the messages have this value or a
smaller one. It is exact, and that of a topic is computed from all its messages, not from those of its windows.
"""

from __future__ import annotations

import msgspec


class TopicStats(msgspec.Struct, frozen=True):
    topic: str
    messages: int
    #: The total size of the values.
    bytes: int
    first_ms: int
    last_ms: int
    size_p50: int
    size_p99: int
    size_max: int
    #: The approximate number of distinct keys.
    keys: int
    #: The average number of messages per second between the first and the last.
    per_s: float


class WindowStats(msgspec.Struct, frozen=True):
    topic: str
    start_ms: int
    messages: int
    bytes: int
    size_p50: int
    size_p99: int
    size_max: int


class SubscriptionStats(msgspec.Struct, frozen=True):
    topic: str
    subscriber: str
    #: The number of messages that are not acked.
    lag: int
    #: The age of the oldest of them.
    oldest_s: float | None


class LatencyStats(msgspec.Struct, frozen=True):
    topic: str
    #: "put": from sending to the broker's confirmation; "delivery": from the confirmation to the consumer.
    what: str
    messages: int
    p50_ms: int
    p99_ms: int
    max_ms: int


class LatencyWindow(msgspec.Struct, frozen=True):
    """The latency of the messages that were confirmed or delivered in a window."""

    topic: str
    what: str
    start_ms: int
    messages: int
    p50_ms: int
    p99_ms: int
    max_ms: int


class LagStats(msgspec.Struct, frozen=True):
    """The lag at the end of a window."""

    topic: str
    subscriber: str
    start_ms: int
    lag: int


class Stats(msgspec.Struct, frozen=True):
    made_ms: int
    broker: str
    window_s: float
    topics: tuple[TopicStats, ...]
    windows: tuple[WindowStats, ...]
    subscriptions: tuple[SubscriptionStats, ...]
    #: These three are empty without client records.
    latencies: tuple[LatencyStats, ...] = ()
    latency_windows: tuple[LatencyWindow, ...] = ()
    lags: tuple[LagStats, ...] = ()
