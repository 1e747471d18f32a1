"""Ranges of offsets: how a reading is cut into tasks, and how much of it one micro-batch takes. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

#: A task is not worth its cost for less.
ROWS_PER_TASK_MIN = 10_000


class Range(msgspec.Struct, frozen=True, gc=False):
    """The messages of one topic from `start` up to `stop`, which is not part of it."""

    topic: str
    topic_id: int
    start: int
    stop: int

    @property
    def count(self) -> int:
        return max(0, self.stop - self.start)


def cut(ranges: Sequence[Range], parts: int) -> list[Range]:
    """Into about that many pieces of about the same size; each topic's pieces stay in order."""
    total = sum(one.count for one in ranges)
    parts = min(parts, max(1, total // ROWS_PER_TASK_MIN))
    pieces: list[Range] = []
    for one in ranges:
        if one.count:
            pieces += _cut_one(one, max(1, round(parts * one.count / total)))
    return pieces


def _cut_one(one: Range, parts: int) -> list[Range]:
    bounds = [one.start + one.count * part // parts for part in range(parts + 1)]
    return [Range(one.topic, one.topic_id, start, stop) for start, stop in pairwise(bounds)]


def admit(counts: Mapping[str, int], rows_max: int) -> dict[str, int]:
    """How many of each topic's messages a micro-batch of at most `rows_max` takes: each topic its share, so that
    a busy one can't keep a quiet one waiting; at least one in all, so that it goes on."""
    total = sum(counts.values())
    if total <= rows_max:
        return dict(counts)
    admitted = {topic: count * rows_max // total for topic, count in counts.items()}
    # What rounding left goes to those who wait for most.
    left = rows_max - sum(admitted.values())
    for topic in sorted(counts, key=lambda topic: admitted[topic] - counts[topic]):
        more = min(left, counts[topic] - admitted[topic])
        admitted[topic] += more
        left -= more
    return admitted
