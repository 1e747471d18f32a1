"""What there is to know of topics. Times are milliseconds since 1970; windows are named by their beginning."""

from __future__ import annotations

import msgspec


class TopicFigures(msgspec.Struct, frozen=True):
    topic: str
    messages: int
    #: Of the values.
    bytes: int
    first_ms: int
    last_ms: int
    size_p50: int
    size_p99: int
    size_max: int
    #: Different keys, about.
    keys: int

    @property
    def per_s(self) -> float:
        """Messages, between the first and the last."""
        return self.messages / max(1.0, (self.last_ms - self.first_ms) / 1000)


class WindowFigures(msgspec.Struct, frozen=True):
    topic: str
    start_ms: int
    messages: int
    bytes: int
    size_p50: int
    size_p99: int
    size_max: int


class SubscriptionFigures(msgspec.Struct, frozen=True):
    topic: str
    subscriber: str
    #: Messages that are not acked.
    lag: int
    #: How long the oldest of them has been stored.
    oldest_s: float | None


class LatencyFigures(msgspec.Struct, frozen=True):
    topic: str
    #: "put": from sending to the broker's word that it is stored; "delivery": from there to the consumer's hands.
    what: str
    start_ms: int
    messages: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class LagFigures(msgspec.Struct, frozen=True):
    """At the end of a window."""

    topic: str
    subscriber: str
    start_ms: int
    lag: int


class Figures(msgspec.Struct, frozen=True):
    made_ms: int
    broker: str
    window_s: float
    topics: tuple[TopicFigures, ...]
    windows: tuple[WindowFigures, ...]
    subscriptions: tuple[SubscriptionFigures, ...]
    #: Both only where clients have recorded their work.
    latencies: tuple[LatencyFigures, ...] = ()
    lags: tuple[LagFigures, ...] = ()
