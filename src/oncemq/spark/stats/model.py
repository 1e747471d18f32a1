"""The statistics of topics. Times are milliseconds since 1970. A window is identified by its start."""

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

    @property
    def per_s(self) -> float:
        """The average number of messages per second between the first and the last."""
        return self.messages / max(1.0, (self.last_ms - self.first_ms) / 1000)


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
    start_ms: int
    messages: int
    p50_ms: float
    p99_ms: float
    max_ms: float


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
    #: Both are empty without client records.
    latencies: tuple[LatencyStats, ...] = ()
    lags: tuple[LagStats, ...] = ()
