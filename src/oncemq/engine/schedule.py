"""What falls due when. Derived from the state, never recorded: a tick costs what has expired, not what exists.

An entry may be early (its session was active meanwhile, its batch was dropped): whoever takes it looks at
the state, and puts it back for later where that is so.
"""

from __future__ import annotations

from collections.abc import Container
from heapq import heapify, heappop, heappush

_FORGET_MIN = 1_000


class DueList:
    """Things by the time at which to look at them."""

    __slots__ = ("_heap", "_known")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int | str]] = []
        self._known: set[int | str] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_ms: int, thing: int | str) -> None:
        """Each thing is in it once: the first entry stands."""
        if thing not in self._known:
            self._known.add(thing)
            heappush(self._heap, (due_ms, thing))

    def take(self, now_ms: int, most: int) -> list[int | str]:
        taken: list[int | str] = []
        while self._heap and self._heap[0][0] <= now_ms and len(taken) < most:
            thing = heappop(self._heap)[1]
            self._known.discard(thing)
            taken.append(thing)
        return taken

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def forget_others(self, things: Container[int | str], count: int) -> None:
        """Keep those among `things`, once most entries are of others: they would lie here until they are due."""
        if len(self._heap) > 2 * count + _FORGET_MIN:
            self._heap = [entry for entry in self._heap if entry[1] in things]
            self._known = {thing for _, thing in self._heap}
            heapify(self._heap)


class Schedule:
    def __init__(self) -> None:
        self.sessions = DueList()
        self.stages = DueList()
        #: Topics with retention by time.
        self.retention = DueList()
        #: Topics that hold more than their retention by size allows.
        self.oversized: set[int] = set()

    def next_ms(self) -> int | None:
        if self.oversized:
            return 0
        times = [due.next_ms() for due in (self.sessions, self.stages, self.retention)]
        return min((time for time in times if time is not None), default=None)
