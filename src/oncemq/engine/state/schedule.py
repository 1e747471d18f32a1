"""What falls due when. Derived from the state, never recorded: a tick costs what has expired, not what exists.

An entry may be early (its session was active meanwhile, its batch was dropped): whoever takes it looks at
the state, and puts it back for later where that is so.
"""

from __future__ import annotations

from collections.abc import Container
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

_FORGET_MIN = 1_000

_T = TypeVar("_T", int, str, tuple[int, str])


class DueList(Generic[_T]):
    """Things by the time at which to look at them."""

    __slots__ = ("_heap", "_known")

    def __init__(self) -> None:
        #: Entries of things that are due earlier, or gone, are skipped.
        self._heap: list[tuple[int, _T]] = []
        self._known: dict[_T, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, due_ms: int, thing: _T) -> None:
        """Each thing is in it once, at its earliest time."""
        known_ms = self._known.get(thing)
        if known_ms is None or due_ms < known_ms:
            self._known[thing] = due_ms
            heappush(self._heap, (due_ms, thing))

    def take(self, now_ms: int, most: int) -> list[_T]:
        taken: list[_T] = []
        while len(taken) < most and (due_ms := self.next_ms()) is not None and due_ms <= now_ms:
            thing = heappop(self._heap)[1]
            del self._known[thing]
            taken.append(thing)
        return taken

    def next_ms(self) -> int | None:
        while self._heap:
            due_ms, thing = self._heap[0]
            if self._known.get(thing) == due_ms:
                return due_ms
            heappop(self._heap)
        return None

    def forget(self, thing: _T) -> None:
        """It is gone, and need not be looked at."""
        self._known.pop(thing, None)
        if len(self._heap) > 2 * len(self._known) + _FORGET_MIN:
            self._heap = [entry for entry in self._heap if self._known.get(entry[1]) == entry[0]]
            heapify(self._heap)

    def forget_others(self, things: Container[_T], count: int) -> None:
        """Keep those among `things`, once most entries are of others: they would lie here until they are due."""
        if len(self._heap) > 2 * count + _FORGET_MIN:
            self._heap = [entry for entry in self._heap if entry[1] in things]
            self._known = {thing: due_ms for due_ms, thing in sorted(self._heap, reverse=True)}
            heapify(self._heap)


class Schedule:
    def __init__(self) -> None:
        self.sessions: DueList[int] = DueList()
        self.stages: DueList[str] = DueList()
        #: Topics with retention by time.
        self.retention: DueList[int] = DueList()
        #: Topics that hold more than their retention by size allows.
        self.oversized: set[int] = set()
        #: Topics that hold more than their quota allows.
        self.over_quota: set[int] = set()
        #: Delayed batches, by delay id, which tells nothing of the topic: `delays` does.
        self.due: DueList[int] = DueList()
        #: Delay id → topic's id.
        self.delays: dict[int, int] = {}
        #: Topics with a batch whose time to live ends.
        self.expiry: DueList[int] = DueList()
        #: Shared subscriptions in which something falls due: (topic's id, subscriber).
        self.shared: DueList[tuple[int, str]] = DueList()
        #: Topics of which messages can be taken again, since time has passed: who waits may look.
        self.ready: set[int] = set()

    def next_ms(self) -> int | None:
        if self.oversized or self.over_quota:
            return 0
        lists = (self.sessions, self.stages, self.retention, self.due, self.expiry, self.shared)
        times = [due.next_ms() for due in lists]
        return min((time for time in times if time is not None), default=None)
