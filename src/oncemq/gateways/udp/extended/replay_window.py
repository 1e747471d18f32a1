"""Which packets of a session have arrived: none is accepted twice."""

from __future__ import annotations

#: How far a packet may be behind the newest one. The network may change their order.
WINDOW_PACKETS = 1024

_MASK = (1 << WINDOW_PACKETS) - 1


class ReplayWindow:
    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = 0
        #: Bit i: the packet with the counter `_highest - i` has arrived.
        self._seen = 0

    def admit(self, counter: int) -> bool:
        """Note a packet. False: it has arrived before, or is so old that nobody knows. The lowest counter is 1."""
        ahead = counter - self._highest
        if ahead > 0:
            self._seen = (self._seen << ahead | 1) & _MASK if ahead < WINDOW_PACKETS else 1
            self._highest = counter
            return True
        if counter < 1 or -ahead >= WINDOW_PACKETS or self._seen >> -ahead & 1:
            return False
        self._seen |= 1 << -ahead
        return True
