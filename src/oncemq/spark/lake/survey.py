"""What an archive holds, as runs of offsets, before anything is written anywhere. Reads three small columns.

A topic that was deleted and made again is another topic, with an id of its own and offsets from 0: the archive holds
both under one name. They are told apart by their ids, and come in the order of their first time stamps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq

from oncemq.protocol import errors
from oncemq.spark.lake.files import ArchiveFile
from oncemq.spark.lake.offset_runs import Coverage, Runs, coverage_of, runs_of
from oncemq.spark.lake.selection import Selection
from oncemq.spark.source.columns import TYPES

_THREADS = 8
_LOOKED_AT = ("topic_id", "offset", "timestamp")
_DOUBLES_SHOWN = 3


class Piece(Runs, frozen=True):
    """What one file holds of one topic id."""

    path: str
    first_time_us: int
    row_bytes: float


class Life(msgspec.Struct, frozen=True):
    """One topic of one id: all that the archive holds of it and that is selected."""

    topic: str
    topic_id: int
    coverage: Coverage
    #: In the order of their first offsets.
    pieces: tuple[Piece, ...]

    @property
    def first_time_us(self) -> int:
        return min(piece.first_time_us for piece in self.pieces)

    @property
    def row_bytes(self) -> float:
        """About, in memory."""
        return sum(piece.row_bytes * piece.count for piece in self.pieces) / self.coverage.count


def survey(files: Iterable[ArchiveFile], selection: Selection) -> dict[str, list[Life]]:
    """By topic, in the order of their names; each topic's lives one after the other. Raises PipelineFailed for an
    archive that holds a message twice."""
    wanted = [file for file in files if selection.may_hold(file.topic, file.date)]
    pieces: dict[tuple[str, int], list[Piece]] = {}
    with ThreadPoolExecutor(_THREADS) as threads:
        for file, found in zip(wanted, threads.map(_looking_for(selection), wanted), strict=True):
            for topic_id, piece in found:
                pieces.setdefault((file.topic, topic_id), []).append(piece)
    topics: dict[str, list[Life]] = {}
    for (topic, topic_id), its in sorted(pieces.items()):
        topics.setdefault(topic, []).append(_life(topic, topic_id, its))
    return {topic: sorted(lives, key=_age) for topic, lives in topics.items()}


def _age(life: Life) -> tuple[int, int]:
    return life.first_time_us, life.topic_id


def _life(topic: str, topic_id: int, pieces: Sequence[Piece]) -> Life:
    coverage = coverage_of(run for piece in pieces for run in piece.runs)
    if coverage.doubles:
        count = sum(stop - first for first, stop in coverage.doubles)
        shown = ", ".join(f"{first} to {stop - 1}" for first, stop in coverage.doubles[:_DOUBLES_SHOWN])
        raise errors.PipelineFailed(
            f"the archive holds {count:,} of the messages of '{topic}' more than once (offsets {shown}"
            f"{', …' if len(coverage.doubles) > _DOUBLES_SHOWN else ''}): was it written with two checkpoints? "
            "Remove one of the copies"
        )
    return Life(topic, topic_id, coverage, tuple(sorted(pieces, key=lambda piece: (piece.first, piece.path))))


def _looking_for(selection: Selection) -> Callable[[ArchiveFile], list[tuple[int, Piece]]]:
    def look(file: ArchiveFile) -> list[tuple[int, Piece]]:
        try:
            return list(_pieces(file, selection))
        except (OSError, ValueError, KeyError) as error:
            # Arrow's errors are of these kinds.
            raise errors.PipelineFailed(f"{file.path} can't be read: {error}") from error

    return look


def _pieces(file: ArchiveFile, selection: Selection) -> Iterator[tuple[int, Piece]]:
    with pq.ParquetFile(file.path) as parquet:
        metadata = parquet.metadata
        sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
        table = parquet.read(columns=list(_LOOKED_AT))
    if any(table.column(name).null_count for name in _LOOKED_AT):
        raise ValueError(f"there are rows without {', '.join(_LOOKED_AT)}")
    ids, offsets = (table.column(name).to_numpy() for name in ("topic_id", "offset"))
    times_us = table.column("timestamp").cast(TYPES["timestamp"]).cast("int64").to_numpy()
    chosen = _mask(selection, offsets, times_us)
    for topic_id in np.unique(ids).tolist():
        mine = ids == topic_id
        runs = runs_of(offsets[mine & chosen])
        if runs:
            # Of all that it has: which life came first does not depend on what is selected.
            first_time_us = int(times_us[mine].min())
            yield topic_id, Piece(tuple(runs), file.path, first_time_us, sum(sizes) / len(ids))


def _mask(selection: Selection, offsets: Any, times_us: Any) -> Any:
    mask = offsets >= selection.first
    if selection.stop is not None:
        mask &= offsets < selection.stop
    if selection.since_us is not None:
        mask &= times_us >= selection.since_us
    if selection.until_us is not None:
        mask &= times_us < selection.until_us
    return mask
