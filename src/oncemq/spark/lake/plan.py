"""How a restore is cut into tasks. Each part is a range of offsets of one topic id; the parts are in the order in which
their messages come, and so are the stages that they become."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.limits import STAGES_PER_COMMIT_MAX
from oncemq.spark.lake.offset_runs import cut
from oncemq.spark.lake.selection import Selection
from oncemq.spark.lake.survey import Life

#: Of one task, in memory, about.
PART_BYTES = 32 * 1024 * 1024


class Part(msgspec.Struct, frozen=True):
    """What one task reads: all that is selected of an id from `first` up to `stop`."""

    topic_id: int
    first: int
    stop: int
    count: int
    paths: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """All of one topic."""

    parts: tuple[Part, ...]
    selection: Selection

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)


def plan_of(
    lives: Sequence[Life], selection: Selection, *, part_bytes: int = PART_BYTES, parts_max: int = STAGES_PER_COMMIT_MAX
) -> Plan:
    """As many parts as it takes, and no more than one commit can publish."""
    # Each life may have one part that is not full.
    allowed = parts_max - len(lives)
    if allowed < 1:
        text = f"{len(lives):,} topics of the name '{lives[0].topic}' are too many for one restore"
        raise errors.PipelineFailed(f"{text}: choose some by their times")
    rows_min = -(-sum(life.coverage.count for life in lives) // allowed)
    parts: list[Part] = []
    for life in lives:
        rows = max(1, rows_min, int(part_bytes / max(1.0, life.row_bytes)))
        parts += _parts(life, rows)
    return Plan(tuple(parts), selection)


def _parts(life: Life, rows: int) -> Iterator[Part]:
    firsts = [piece.first for piece in life.pieces]
    # How far the pieces up to each one reach: what ends before a part begins is left out without a look.
    reached = list(accumulate((piece.stop for piece in life.pieces), max))
    for first, stop, count in cut(life.coverage.runs, rows):
        near = life.pieces[bisect_right(reached, first) : bisect_left(firsts, stop)]
        paths = tuple(piece.path for piece in near if piece.stop > first)
        yield Part(life.topic_id, first, stop, count, paths)
