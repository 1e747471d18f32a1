"""Finds out which offsets an archive contains, before anything is restored. Reads three small columns.

A topic that was deleted and created again is another topic, with another id and offsets from 0. The archive contains
both incarnations under one name. They are distinguished by their ids, and ordered by their first time stamps.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq

from oncemq.arrow.columns import TYPES
from oncemq.protocol import errors
from oncemq.spark.lake.files import ArchiveFile, open_archive_file
from oncemq.spark.lake.offset_runs import Coverage, OffsetRuns, find_runs, merge_runs
from oncemq.spark.lake.selection import Selection

_THREADS = 8
_COLUMNS = ("topic_id", "offset", "timestamp")
_DOUBLES_SHOWN = 3


class FileOffsets(OffsetRuns, frozen=True):
    """The selected offsets of one topic id in one file."""

    path: str
    first_time_us: int
    row_bytes: float


class TopicIncarnation(msgspec.Struct, frozen=True):
    """The selected messages of one topic id."""

    topic: str
    topic_id: int
    coverage: Coverage
    #: In the order of their first offsets.
    files: tuple[FileOffsets, ...]

    @property
    def first_time_us(self) -> int:
        return min(file.first_time_us for file in self.files)

    @property
    def row_bytes(self) -> float:
        """The approximate size of a row in memory."""
        return sum(file.row_bytes * file.count for file in self.files) / self.coverage.count


def survey(files: Iterable[ArchiveFile], selection: Selection) -> dict[str, list[TopicIncarnation]]:
    """Return the incarnations of each topic in their order, by topic in the order of names. Raises PipelineFailed if
    the archive contains a message twice or a file can't be read."""
    wanted = [file for file in files if selection.may_match(file.topic, file.date)]
    found: dict[tuple[str, int], list[FileOffsets]] = {}
    with ThreadPoolExecutor(_THREADS) as threads:
        read = functools.partial(_read_offsets, selection=selection)
        for file, by_id in zip(wanted, threads.map(read, wanted), strict=True):
            for topic_id, offsets in by_id:
                found.setdefault((file.topic, topic_id), []).append(offsets)
    topics: dict[str, list[TopicIncarnation]] = {}
    for (topic, topic_id), offsets_of_files in sorted(found.items()):
        topics.setdefault(topic, []).append(_incarnation(topic, topic_id, offsets_of_files))
    return {
        topic: sorted(incarnations, key=lambda each: (each.first_time_us, each.topic_id))
        for topic, incarnations in topics.items()
    }


def _incarnation(topic: str, topic_id: int, files: Sequence[FileOffsets]) -> TopicIncarnation:
    coverage = merge_runs(run for file in files for run in file.runs)
    if coverage.doubles:
        count = sum(stop - first for first, stop in coverage.doubles)
        shown = ", ".join(f"{first} to {stop - 1}" for first, stop in coverage.doubles[:_DOUBLES_SHOWN])
        raise errors.PipelineFailed(
            f"the archive contains {count:,} of the messages of '{topic}' more than once (offsets {shown}"
            f"{', …' if len(coverage.doubles) > _DOUBLES_SHOWN else ''}): was it written with two checkpoints? "
            "Delete one of the copies"
        )
    ordered = tuple(sorted(files, key=lambda file: (file.first, file.path)))
    return TopicIncarnation(topic, topic_id, coverage, ordered)


def _read_offsets(file: ArchiveFile, selection: Selection) -> list[tuple[int, FileOffsets]]:
    try:
        return list(_file_offsets(file, selection))
    except (OSError, ValueError, KeyError) as error:
        # Arrow raises these kinds of errors.
        raise errors.PipelineFailed(f"{file.path} can't be read: {error}") from error


def _file_offsets(file: ArchiveFile, selection: Selection) -> Iterator[tuple[int, FileOffsets]]:
    with pq.ParquetFile(open_archive_file(file.path)) as parquet:
        metadata = parquet.metadata
        sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
        table = parquet.read(columns=list(_COLUMNS))
    if any(table.column(name).null_count for name in _COLUMNS):
        raise ValueError(f"there are rows without {', '.join(_COLUMNS)}")
    ids, offsets = (table.column(name).to_numpy() for name in ("topic_id", "offset"))
    times_us = table.column("timestamp").cast(TYPES["timestamp"]).cast("int64").to_numpy()
    chosen = _mask(selection, offsets, times_us)
    for topic_id in np.unique(ids).tolist():
        mine = ids == topic_id
        runs = find_runs(offsets[mine & chosen])
        if runs:
            # Of all messages in the file: the order of the incarnations must not depend on the selection.
            first_time_us = int(times_us[mine].min())
            yield topic_id, FileOffsets(tuple(runs), file.path, first_time_us, sum(sizes) / len(ids))


def _mask(selection: Selection, offsets: Any, times_us: Any) -> Any:
    mask = offsets >= selection.first
    if selection.stop is not None:
        mask &= offsets < selection.stop
    if selection.since_us is not None:
        mask &= times_us >= selection.since_us
    if selection.until_us is not None:
        mask &= times_us < selection.until_us
    return mask
