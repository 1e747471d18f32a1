"""Ranges of offsets, as [first, end): the messages of a lease, and acked messages.

Costs are per range, whatever the number of messages in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

#: (first, end, tries)
Span = tuple[int, int, int]


class Spans:
    """Disjoint ranges in ascending order, each with its number of deliveries."""

    __slots__ = ("_spans", "count")

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = sorted(spans)
        #: Number of messages in all ranges.
        self.count = sum(end - first for first, end, _ in self._spans)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def _at(self, offset: int) -> int:
        """Return the index of the last range that starts at or below an offset, or of the first range."""
        return max(0, bisect_left(self._spans, (offset + 1,)) - 1)

    def within(self, first: int, end: int) -> Iterator[Span]:
        """Yield the parts that lie within a range, in ascending order."""
        for at in range(self._at(first), len(self._spans)):
            span_first, span_end, tries = self._spans[at]
            if span_first >= end:
                return
            if span_end > first:
                yield max(first, span_first), min(end, span_end), tries

    def remove(self, first: int, end: int) -> list[Span]:
        """Remove and return the parts that lie within a range."""
        found = list(self.within(first, end))
        if not found:
            return found
        low = self._at(found[0][0])
        high = self._at(found[-1][0]) + 1
        head, tail = self._spans[low], self._spans[high - 1]
        left = [(head[0], first, head[2])] if head[0] < first else []
        right = [(end, tail[1], tail[2])] if tail[1] > end else []
        self._spans[low:high] = left + right
        self.count -= sum(span_end - span_first for span_first, span_end, _ in found)
        return found


class AckedRanges:
    """The acked offsets: everything below the floor, and some ranges above it.

    Ranges are indexed by their first offset and by their end only. No offset is acked twice, so a range only grows at
    its ends, and acks in any order take constant time.
    """

    __slots__ = ("_ends", "_firsts", "count", "floor")

    def __init__(self, floor: int, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.floor = floor
        #: Number of acked messages above the floor.
        self.count = 0
        self._ends: dict[int, int] = {}
        self._firsts: dict[int, int] = {}
        for first, end in ranges:
            self.add(first, end)

    def add(self, first: int, end: int) -> None:
        """Add a range. None of its offsets may be acked already."""
        self.count += end - first
        if end in self._ends:
            end = self._ends.pop(end)
            del self._firsts[end]
        if first == self.floor:
            self.count -= end - first
            self.floor = end
            return
        if first in self._firsts:
            first = self._firsts.pop(first)
        self._ends[first] = end
        self._firsts[end] = first

    def advance(self, floor: int) -> int:
        """Raise the floor. Return the number of messages below it that were not acked. Scans all ranges."""
        missing = floor - self.floor
        ranges = self.ranges()
        self.floor, self.count, self._ends, self._firsts = floor, 0, {}, {}
        for first, end in ranges:
            missing -= max(0, min(end, floor) - first)
            if end > self.floor:
                self.add(max(first, floor), end)
        return missing

    def ranges(self) -> list[tuple[int, int]]:
        return sorted(self._ends.items())


def merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Merge (first, end) ranges in any order that overlap or touch; return them as (first, count)."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return tuple((first, end - first) for first, end in found)
