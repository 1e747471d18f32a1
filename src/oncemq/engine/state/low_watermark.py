"""The lowest acked position of many subscriptions, without scanning all of them each time.

A heap has one entry per subscription: its position, or a lower one that it had before. Positions only rise, except by
seeks. So the top entry is updated until it is exact. Each move of a subscription costs at most one such update.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

#: Up to this many subscriptions are scanned each time: a heap would not be worth its memory.
SCAN_MAX = 8


class HasPosition(Protocol):
    acked: int


class LowWatermark:
    __slots__ = ("_heap",)

    def __init__(self, subscriptions: Mapping[str, HasPosition]) -> None:
        self._heap = [(entry.acked, subscriber) for subscriber, entry in subscriptions.items()]
        heapify(self._heap)

    def __len__(self) -> int:
        """Number of entries, including stale ones of subscriptions that were deleted or moved back."""
        return len(self._heap)

    def add(self, position: int, subscriber: str) -> None:
        """Add the position of a new subscription, or of one that moves back."""
        heappush(self._heap, (position, subscriber))

    def lowest(self, subscriptions: Mapping[str, HasPosition]) -> int:
        """Return the lowest position. There must be at least one subscription."""
        while True:
            position, subscriber = self._heap[0]
            entry = subscriptions.get(subscriber)
            if entry is None:
                heappop(self._heap)
            elif entry.acked > position:
                heapreplace(self._heap, (entry.acked, subscriber))
            else:
                return position
