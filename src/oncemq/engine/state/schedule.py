"""What is due when. Derived from the state and never recorded: the cost of a tick depends on what is due, not on what
exists.

An entry can be early, for example because its session was active since, or stale, because its batch was deleted. The
caller that takes an entry checks the state, and adds an early entry again with its later time.
"""

from __future__ import annotations

from collections.abc import Container
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

_STALE_MIN = 1_000

_T = TypeVar("_T", int, str, tuple[int, str])


class DueQueue(Generic[_T]):
    """Items ordered by the time at which to check them."""

    __slots__ = ("_times", "heap")

    def __init__(self) -> None:
        #: Entries whose time is not that of `_times` are stale and are skipped.
        self.heap: list[tuple[int, _T]] = []
        self._times: dict[_T, int] = {}

    def __len__(self) -> int:
        return len(self._times)

    def add(self, due_ms: int, item: _T) -> None:
        """Add an item. Each item is in the queue once, at its earliest time."""
        known_ms = self._times.get(item)
        if known_ms is None or due_ms < known_ms:
            self._times[item] = due_ms
            heappush(self.heap, (due_ms, item))

    def take(self, now_ms: int, count_max: int) -> list[_T]:
        """Remove and return at most `count_max` items that are due."""
        taken: list[_T] = []
        while len(taken) < count_max and (due_ms := self.next_ms()) is not None and due_ms <= now_ms:
            item = heappop(self.heap)[1]
            del self._times[item]
            taken.append(item)
        return taken

    def next_ms(self) -> int | None:
        while self.heap:
            due_ms, item = self.heap[0]
            if self._times.get(item) == due_ms:
                return due_ms
            heappop(self.heap)
        return None

    def discard(self, item: _T) -> None:
        self._times.pop(item, None)
        if len(self.heap) > 2 * len(self._times) + _STALE_MIN:
            self.heap = [entry for entry in self.heap if self._times.get(entry[1]) == entry[0]]
            heapify(self.heap)

    def discard_others(self, items: Container[_T], count: int) -> None:
        """Keep only entries of `items`, once most entries belong to others: those would stay until they are due."""
        if len(self.heap) > 2 * count + _STALE_MIN:
            self.heap = [entry for entry in self.heap if entry[1] in items]
            self._times = {item: due_ms for due_ms, item in sorted(self.heap, reverse=True)}
            heapify(self.heap)


class Schedule:
    def __init__(self) -> None:
        #: Ids of anonymous sessions.
        self.sessions: DueQueue[int] = DueQueue()
        #: Names of stages.
        self.stages: DueQueue[str] = DueQueue()
        #: Ids of topics with retention by time.
        self.retention: DueQueue[int] = DueQueue()
        #: Ids of topics that store more than their retention by size allows.
        self.oversized: set[int] = set()
        #: Ids of topics that store more than their quota allows.
        self.over_quota: set[int] = set()
        #: Delay ids of delayed batches.
        self.due: DueQueue[int] = DueQueue()
        #: Delay id → topic id.
        self.delays: dict[int, int] = {}
        #: Ids of topics with a batch that has a time to live.
        self.expiry: DueQueue[int] = DueQueue()
        #: Subscriptions with `idle_ms`: (topic id, subscriber); for patterns (0, key).
        self.idle: DueQueue[tuple[int, str]] = DueQueue()
        #: Shared subscriptions with leases, members or delayed redeliveries: (topic id, subscriber).
        self.shared: DueQueue[tuple[int, str]] = DueQueue()
        #: Ids of topics with shared subscriptions that a tick has checked: waiting takes may find messages now.
        self.wakeups: set[int] = set()
        self._queues: tuple[DueQueue[Any], ...] = (
            self.sessions,
            self.stages,
            self.retention,
            self.due,
            self.expiry,
            self.idle,
            self.shared,
        )

    def next_ms(self) -> int | None:
        """Return when the first item is due; None = there is none. Every round asks."""
        if self.oversized or self.over_quota:
            return 0
        soonest_ms: int | None = None
        for queue in self._queues:
            if queue.heap:
                due_ms = queue.next_ms()
                if due_ms is not None and (soonest_ms is None or due_ms < soonest_ms):
                    soonest_ms = due_ms
        return soonest_ms
