"""Splits a restore into tasks. Each part is a range of offsets of one topic id. The parts, and so the stages that they
become, are in the order of their messages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.limits import STAGES_PER_COMMIT_MAX
from oncemq.spark.lake.offset_runs import split_runs
from oncemq.spark.lake.selection import Selection
from oncemq.spark.lake.survey import TopicIncarnation

#: The approximate size of one task in memory.
PART_BYTES = 32 * 1024 * 1024


class Part(msgspec.Struct, frozen=True):
    """The range that one task reads: the selected messages of a topic id from `first` up to `stop`."""

    topic_id: int
    first: int
    stop: int
    count: int
    paths: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """The parts of one topic."""

    parts: tuple[Part, ...]
    selection: Selection

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)


def make_plan(
    incarnations: Sequence[TopicIncarnation],
    selection: Selection,
    *,
    part_bytes: int = PART_BYTES,
    parts_max: int = STAGES_PER_COMMIT_MAX,
) -> Plan:
    """Split into as many parts as needed, but at most as many as one commit can publish. Raises PipelineFailed."""
    # Each incarnation may have one part that is not full.
    allowed = parts_max - len(incarnations)
    if allowed < 1:
        raise errors.PipelineFailed(
            f"topic '{incarnations[0].topic}' was deleted and created again {len(incarnations):,} times, which is too "
            "much for one restore: restore them separately, with --since and --until"
        )
    rows_min = -(-sum(incarnation.coverage.count for incarnation in incarnations) // allowed)
    parts: list[Part] = []
    for incarnation in incarnations:
        rows = max(1, rows_min, int(part_bytes / max(1.0, incarnation.row_bytes)))
        parts += _parts(incarnation, rows)
    return Plan(tuple(parts), selection)


def _parts(incarnation: TopicIncarnation, rows: int) -> Iterator[Part]:
    firsts = [file.first for file in incarnation.files]
    # The highest offset of the files up to each one. With it, files that end before a part starts are skipped.
    reached = list(accumulate((file.stop for file in incarnation.files), max))
    for first, stop, count in split_runs(incarnation.coverage.runs, rows):
        near = incarnation.files[bisect_right(reached, first) : bisect_left(firsts, stop)]
        paths = tuple(file.path for file in near if file.stop > first)
        yield Part(incarnation.topic_id, first, stop, count, paths)
