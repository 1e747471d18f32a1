"""Runs of offsets: what an archive covers, and how it is split."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from oncemq.spark.lake.offset_runs import find_runs, merge_runs, split_runs


def test_runs_are_what_lies_without_gaps() -> None:
    assert find_runs(np.array([], dtype=np.int64)) == []
    assert find_runs(np.array([5])) == [(5, 6)]
    assert find_runs(np.array([9, 3, 4, 5, 10])) == [(3, 6), (9, 11)]
    # Twice the same: it must not vanish in one run.
    assert find_runs(np.array([3, 4, 4, 5])) == [(3, 5), (4, 6)]


@pytest.mark.parametrize("seed", range(50))
def test_coverage_knows_what_is_missing_and_what_is_there_twice(seed: int) -> None:
    chance = random.Random(seed)
    runs = [(first, first + chance.randint(1, 6)) for first in (chance.randint(0, 60) for _ in range(10))]
    times = Counter(offset for first, stop in runs for offset in range(first, stop))
    coverage = merge_runs(runs)
    assert [offset for first, stop in coverage.runs for offset in range(first, stop)] == sorted(times)
    assert {offset for first, stop in coverage.doubles for offset in range(first, stop)} == {
        offset for offset, count in times.items() if count > 1
    }
    assert (coverage.first, coverage.stop, coverage.count) == (min(times), max(times) + 1, len(times))
    assert coverage.missing == max(times) + 1 - min(times) - len(times)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_pieces_are_full_and_in_order_and_lose_nothing(rows: int) -> None:
    runs = [(0, 5), (8, 9), (20, 33)]
    offsets = [offset for first, stop in runs for offset in range(first, stop)]
    pieces = split_runs(runs, rows)
    held = [[offset for offset in offsets if first <= offset < stop] for first, stop, _ in pieces]
    assert [offset for piece in held for offset in piece] == offsets
    assert [len(piece) for piece in held] == [count for _, _, count in pieces]
    assert all(len(piece) == rows for piece in held[:-1])
