"""Rate limits for received packets: token buckets, one per source and one for all. It does no I/O: the time is an
argument."""

from __future__ import annotations

from collections import OrderedDict

from oncemq.gateways.udp.tokens import Address, source_of

#: Maximum number of sources with a bucket. Beyond it, the source that was silent for longest is forgotten and starts
#: again with a full bucket; the bucket for all sources limits how this can be abused.
SOURCES_MAX = 10_000


class Bucket:
    """Holds at most the amount of one second."""

    __slots__ = ("_level", "_per_s", "_since_ms")

    def __init__(self, per_s: float, now_ms: float) -> None:
        self._per_s = per_s
        self._level = per_s
        self._since_ms = now_ms

    def take(self, now_ms: float, amount: float = 1.0) -> bool:
        """Take an amount. False: there is not enough."""
        is_enough = self.has(now_ms, amount)
        if is_enough:
            self._level -= amount
        return is_enough

    def has(self, now_ms: float, amount: float = 1.0) -> bool:
        """Return whether there is enough."""
        self._level = min(self._per_s, self._level + (now_ms - self._since_ms) * self._per_s / 1000)
        self._since_ms = now_ms
        return self._level >= amount


class SourceBuckets:
    """One bucket per source."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def of(self, now_ms: float, address: Address) -> Bucket:
        source = source_of(address)
        bucket = self._buckets.get(source)
        if bucket is None:
            bucket = self._buckets[source] = Bucket(self._per_s, now_ms)
            if len(self._buckets) > SOURCES_MAX:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(source)
        return bucket

    def __contains__(self, address: Address) -> bool:
        return source_of(address) in self._buckets

    def __len__(self) -> int:
        return len(self._buckets)


class Rates:
    """The rates of received packets."""

    def __init__(self, per_source_per_s: float, per_s: float, now_ms: float) -> None:
        self._all = Bucket(per_s, now_ms)
        self._sources = SourceBuckets(per_source_per_s)

    def admits(self, now_ms: float, address: Address) -> bool:
        """Return whether a packet is within the limits."""
        # A source over its own limit must not use the common one.
        return self._sources.of(now_ms, address).take(now_ms) and self._all.take(now_ms)

    def __len__(self) -> int:
        return len(self._sources)


class Failures:
    """The rate of wrong MACs and of unknown access tokens. Only sources that had one are remembered."""

    def __init__(self, per_source_per_s: float) -> None:
        self._sources = SourceBuckets(per_source_per_s)

    def note(self, now_ms: float, address: Address) -> None:
        self._sources.of(now_ms, address).take(now_ms)

    def are_too_many(self, now_ms: float, address: Address) -> bool:
        return address in self._sources and not self._sources.of(now_ms, address).has(now_ms)
