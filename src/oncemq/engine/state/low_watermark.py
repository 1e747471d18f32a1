"""The lowest of many positions that move, without a look at all of them each time.

A heap holds a bound for each subscription: its position, or a lower one that it had before. Positions rise, but for
seeks; so the bound on top is brought up to date until it is true. Each move of a subscription costs that once.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

#: So few are looked at each time: no heap is worth its room.
FEW = 8


class HasPosition(Protocol):
    acked: int


class Bounds:
    __slots__ = ("_heap",)

    def __init__(self, subscriptions: Mapping[str, HasPosition]) -> None:
        self._heap = [(entry.acked, subscriber) for subscriber, entry in subscriptions.items()]
        heapify(self._heap)

    def __len__(self) -> int:
        """Those of subscriptions that are gone, or have come back to a lower position, included."""
        return len(self._heap)

    def add(self, position: int, subscriber: str) -> None:
        """Of a new subscription, or one that goes back."""
        heappush(self._heap, (position, subscriber))

    def lowest(self, subscriptions: Mapping[str, HasPosition]) -> int:
        """There is one at least."""
        while True:
            position, subscriber = self._heap[0]
            entry = subscriptions.get(subscriber)
            if entry is None:
                heappop(self._heap)
            elif entry.acked > position:
                heapreplace(self._heap, (entry.acked, subscriber))
            else:
                return position
