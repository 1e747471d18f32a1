"""Ranges of offsets: splits a read into tasks, and limits the size of a micro-batch. Contains only arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

#: A task with fewer rows costs more to start than it saves.
ROWS_PER_TASK_MIN = 10_000


class Range(msgspec.Struct, frozen=True, gc=False):
    """The messages of one topic from `start` up to, and not including, `stop`."""

    topic: str
    topic_id: int
    start: int
    stop: int

    @property
    def count(self) -> int:
        return max(0, self.stop - self.start)


def split(ranges: Sequence[Range], parts: int) -> list[Range]:
    """Split into about `parts` ranges of about the same size. The ranges of each topic stay in order."""
    total = sum(whole.count for whole in ranges)
    parts = min(parts, max(1, total // ROWS_PER_TASK_MIN))
    found: list[Range] = []
    for whole in ranges:
        if whole.count:
            count = max(1, round(parts * whole.count / total))
            bounds = [whole.start + whole.count * part // count for part in range(count + 1)]
            found += [Range(whole.topic, whole.topic_id, start, stop) for start, stop in pairwise(bounds)]
    return found


def admit(counts: Mapping[str, int], rows_max: int) -> dict[str, int]:
    """How many messages of each topic a micro-batch of at most `rows_max` takes.

    Each topic gets its share, so that a busy topic does not delay a quiet one. At least one message is taken in total,
    so that the query makes progress."""
    total = sum(counts.values())
    if total <= rows_max:
        return dict(counts)
    admitted = {topic: count * rows_max // total for topic, count in counts.items()}
    # Rounding leaves a remainder, which goes to the topics with the most waiting messages.
    left = rows_max - sum(admitted.values())
    for topic in sorted(counts, key=lambda topic: admitted[topic] - counts[topic]):
        more = min(left, counts[topic] - admitted[topic])
        admitted[topic] += more
        left -= more
    return admitted
