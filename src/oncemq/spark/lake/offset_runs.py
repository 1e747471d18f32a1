"""Offsets as runs without gaps, each (first, stop), `stop` not being part of it. Arithmetic only.

What a file holds is a run or a few, whatever its size: so an archive of any size is checked in little memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

Run = tuple[int, int]


class Runs(msgspec.Struct, frozen=True):
    """Offsets, as runs."""

    #: In order; neighbours are one run.
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


class Coverage(Runs, frozen=True):
    """What some runs cover together."""

    #: Offsets that come more than once.
    doubles: tuple[Run, ...]

    @property
    def missing(self) -> int:
        """Offsets between the first and the last that are not there."""
        return self.stop - self.first - self.count


def runs_of(offsets: Any) -> list[Run]:
    """Of an array, in any order. An offset that is there twice ends one run and begins another."""
    if not len(offsets):
        return []
    ordered = np.sort(offsets)
    cuts = np.flatnonzero(np.diff(ordered) != 1)
    firsts = ordered[np.concatenate(([0], cuts + 1))]
    lasts = ordered[np.concatenate((cuts, [len(ordered) - 1]))]
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def coverage_of(runs: Iterable[Run]) -> Coverage:
    """
    >>> coverage_of([(5, 9), (0, 3), (3, 6)])
    Coverage(runs=((0, 9),), doubles=((5, 6),))
    """
    covered: list[Run] = []
    doubles: list[Run] = []
    for first, stop in sorted(runs):
        if covered and first <= covered[-1][1]:
            begun, reached = covered.pop()
            if first < reached:
                doubles.append((first, min(stop, reached)))
            first, stop = begun, max(reached, stop)
        covered.append((first, stop))
    return Coverage(tuple(covered), tuple(doubles))


def cut(runs: Sequence[Run], rows: int) -> list[tuple[int, int, int]]:
    """Into pieces of `rows` offsets, the last one of fewer: (first, stop, count), where gaps don't count.

    >>> cut([(0, 3), (10, 15)], 4)
    [(0, 11, 4), (11, 15, 4)]
    """
    pieces: list[tuple[int, int, int]] = []
    begun, count = 0, 0
    for first, stop in runs:
        at = first
        while at < stop:
            begun = begun if count else at
            taken = min(stop - at, rows - count)
            at, count = at + taken, count + taken
            if count == rows:
                pieces.append((begun, at, count))
                count = 0
    if count:
        pieces.append((begun, runs[-1][1], count))
    return pieces
