"""A figure and its upper bound."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Row(msgspec.Struct, frozen=True):
    """One line of the result."""

    case: str
    value: float
    unit: str
    limit: float
    limit_name: str
    #: value / limit; a multiple of the limit for times.
    ratio: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    #: The broker's CPU time for each message, in microseconds, where it was measured.
    broker_us: float | None = None
    #: The same of all clients together.
    client_us: float | None = None


def make_row(case: str, value: float, unit: str, limits: dict[str, float], times_s: Sequence[float] = ()) -> Row:
    """Return a row with the smallest of the limits."""
    name = min(limits, key=lambda key: limits[key])
    limit = limits[name]
    spread = [round(quantile(times_s, share) * 1000, 4) for share in (0.5, 0.99, 0.999)] if times_s else [None] * 3
    return Row(case, round(value, 4), unit, round(limit, 4), name, round(value / limit, 3), *spread)


def with_cpu(row: Row, messages: int, broker_s: float, client_s: float) -> Row:
    """Add the CPU time for each message. 0 seconds: it was not measured."""

    def each_us(seconds: float) -> float | None:
        return round(seconds / messages * 1e6, 3) if seconds and messages else None

    return msgspec.structs.replace(row, broker_us=each_us(broker_s), client_us=each_us(client_s))


def quantile(times_s: Sequence[float], share: float) -> float:
    ordered = sorted(times_s)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Rates:
    """The rate of each round."""

    def __init__(self) -> None:
        self._rates: list[float] = []

    def add(self, amount: float, seconds: float) -> None:
        self._rates.append(amount / seconds)

    @property
    def rate(self) -> float:
        """Return the median, so that noise in a single round has no effect."""
        return quantile(self._rates, 0.5)
