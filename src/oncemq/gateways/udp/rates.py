"""How much is taken from whom: token buckets, for each source and for all together. Pure, the time comes in."""

from __future__ import annotations

from collections import OrderedDict

from oncemq.gateways.udp.tokens import Address, is_loopback

#: Sources that are told apart. Behind them the one that was heard longest ago is forgotten, and begins with a full
#: bucket; the bucket of all together bounds what that can be used for.
SOURCES_MAX = 10_000


class Bucket:
    """Holds one second's worth."""

    __slots__ = ("_level", "_per_s", "_since_ms")

    def __init__(self, per_s: float, now_ms: float) -> None:
        self._per_s = per_s
        self._level = per_s
        self._since_ms = now_ms

    def take(self, now_ms: float, amount: float = 1.0) -> bool:
        level = min(self._per_s, self._level + (now_ms - self._since_ms) * self._per_s / 1000)
        self._since_ms = now_ms
        is_there = level >= amount
        self._level = level - amount if is_there else level
        return is_there


class Rates:
    """Of packets that arrive."""

    def __init__(self, per_source_per_s: float, per_s: float, now_ms: float) -> None:
        self._per_source_per_s = per_source_per_s
        self._all = Bucket(per_s, now_ms)
        self._sources: OrderedDict[str, Bucket] = OrderedDict()

    def admits(self, now_ms: float, address: Address) -> bool:
        # A source over its own rate must not use up that of the others.
        return self._bucket(now_ms, address).take(now_ms) and self._all.take(now_ms)

    def _bucket(self, now_ms: float, address: Address) -> Bucket:
        # A host can use any number of its ports, so they count together; on this machine they are different programs.
        source = f"{address[0]} {address[1]}" if is_loopback(address) else address[0]
        bucket = self._sources.get(source)
        if bucket is None:
            bucket = self._sources[source] = Bucket(self._per_source_per_s, now_ms)
            if len(self._sources) > SOURCES_MAX:
                self._sources.popitem(last=False)
        else:
            self._sources.move_to_end(source)
        return bucket

    def __len__(self) -> int:
        return len(self._sources)
