"""Ranges of offsets: splits a read into tasks, and limits the size of a micro-batch. Contains only arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

#: A message costs as much to read as this many bytes, in addition to its own.
_ROW_BYTES = 200
#: A task ends with a stored batch if that changes what it reads by less than this share: two tasks that read parts of
#: the same batch both fetch it.
_SNAP = 0.25


class Range(msgspec.Struct, frozen=True, gc=False):
    """The messages of one topic from `start` up to, and not including, `stop`."""

    topic: str
    topic_id: int
    start: int
    stop: int

    @property
    def count(self) -> int:
        return max(0, self.stop - self.start)


class Extent(msgspec.Struct, frozen=True):
    """The size of a range, as the broker measured it."""

    bytes: int = 0
    #: When the first message was stored; 0 = none of them is stored.
    time_ms: int = 0
    #: Ends of stored batches as offsets, and the bytes from each to the one before.
    parts: Sequence[tuple[int, int]] = ()


def divide(whole: Range, extent: Extent, count: int) -> list[Range]:
    """Divide into at most `count` ranges, in order, that cost about the same to read."""
    offsets, costs = [whole.start], [0]
    size = extent.bytes
    for end, part_bytes in (*extent.parts, (whole.stop, size - sum(part for _, part in extent.parts))):
        if offsets[-1] < end:
            costs.append(costs[-1] + part_bytes + _ROW_BYTES * (end - offsets[-1]))
            offsets.append(end)
    bounds = [whole.start]
    for number in range(1, count):
        bounds.append(max(bounds[-1], _offset_at(offsets, costs, costs[-1] * number / count, costs[-1] / count)))
    bounds.append(whole.stop)
    return [msgspec.structs.replace(whole, start=start, stop=stop) for start, stop in pairwise(bounds) if start < stop]


def _offset_at(offsets: Sequence[int], costs: Sequence[int], wanted: float, per_task: float) -> int:
    """The end of a batch near this cost, or an offset inside a part if it is too large."""
    after = min(bisect_right(costs, wanted), len(costs) - 1)
    near = min(after - 1, after, key=lambda at: abs(costs[at] - wanted))
    if abs(costs[near] - wanted) <= _SNAP * per_task:
        return offsets[near]
    share = (wanted - costs[after - 1]) / (costs[after] - costs[after - 1])
    return offsets[after - 1] + round(share * (offsets[after] - offsets[after - 1]))


def limit_rows(parts: Sequence[Range], rows_max: int) -> list[Range]:
    """Divide the ranges that have more than `rows_max` messages."""
    found: list[Range] = []
    for part in parts:
        count = -(-part.count // rows_max)
        bounds = [part.start + part.count * number // count for number in range(count + 1)]
        found += [msgspec.structs.replace(part, start=start, stop=stop) for start, stop in pairwise(bounds)]
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
