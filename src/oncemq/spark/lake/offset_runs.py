"""Offsets as runs without gaps, each (first, stop), where `stop` is excluded. Contains only arithmetic.

A file contains one run or a few, whatever its size, so that an archive of any size is checked in little memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

Run = tuple[int, int]


class OffsetRuns(msgspec.Struct, frozen=True):
    """Offsets as runs."""

    #: In order; adjacent runs are merged.
    runs: tuple[Run, ...]

    @property
    def first(self) -> int:
        return self.runs[0][0]

    @property
    def stop(self) -> int:
        return self.runs[-1][1]

    @property
    def count(self) -> int:
        return sum(stop - first for first, stop in self.runs)


class Coverage(OffsetRuns, frozen=True):
    """The union of some runs."""

    #: Offsets that occur more than once.
    doubles: tuple[Run, ...]

    @property
    def missing(self) -> int:
        """The number of offsets between the first and the last that do not occur."""
        return self.stop - self.first - self.count


def find_runs(offsets: Any) -> list[Run]:
    """The runs of an array in any order. An offset that occurs twice ends one run and begins another."""
    if not len(offsets):
        return []
    ordered = np.sort(offsets)
    ends = np.flatnonzero(np.diff(ordered) != 1)
    firsts = ordered[np.concatenate(([0], ends + 1))]
    lasts = ordered[np.concatenate((ends, [len(ordered) - 1]))]
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def merge_runs(runs: Iterable[Run]) -> Coverage:
    """
    >>> merge_runs([(5, 9), (0, 3), (3, 6)])
    Coverage(runs=((0, 9),), doubles=((5, 6),))
    """
    covered: list[Run] = []
    doubles: list[Run] = []
    for first, stop in sorted(runs):
        if covered and first <= covered[-1][1]:
            previous_first, previous_stop = covered.pop()
            if first < previous_stop:
                doubles.append((first, min(stop, previous_stop)))
            first, stop = previous_first, max(previous_stop, stop)
        covered.append((first, stop))
    return Coverage(tuple(covered), tuple(doubles))


def split_runs(runs: Sequence[Run], rows: int) -> list[tuple[int, int, int]]:
    """Split into parts (first, stop, count) of `rows` offsets, the last one of fewer. Gaps do not count.

    >>> split_runs([(0, 3), (10, 15)], 4)
    [(0, 11, 4), (11, 15, 4)]
    """
    parts: list[tuple[int, int, int]] = []
    start, count = 0, 0
    for first, stop in runs:
        at = first
        while at < stop:
            start = start if count else at
            taken = min(stop - at, rows - count)
            at, count = at + taken, count + taken
            if count == rows:
                parts.append((start, at, count))
                count = 0
    if count:
        parts.append((start, runs[-1][1], count))
    return parts
