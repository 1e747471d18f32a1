"""What identifies the rows of a batch write: for each topic their number, and sums of hashes of the messages.

A repeated write may have other partitions and another order of rows. So each row is hashed separately, and the hashes
are added up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import xxhash

from oncemq.arrow.payloads import MessageColumns
from oncemq.spark.checkpoint.content import digest

#: Odd numbers, one for each column: the same bytes as a key and as a value give other sums.
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_MASK = (1 << 64) - 1
_RUN_BYTES = 8


class WriteContent(NamedTuple):
    """What identifies a batch write. A write in `foreachBatch` belongs to a micro-batch and to a run of its query.

    A replay of the micro-batch in a later run is the same write, although it may compute other values. In the same run,
    other rows are another write."""

    #: The digest of the rows; b"" = the write has no id.
    rows: bytes
    #: The digest of the micro-batch; b"" = there is none.
    micro_batch: bytes = b""
    run_id: str = ""

    def to_bytes(self) -> bytes:
        return self.micro_batch + self._run() + self.rows if self.micro_batch else self.rows

    def is_replay_of(self, known: bytes) -> bool:
        """Whether an earlier run of the query has made this write, given the content that the broker knows."""
        size = len(self.micro_batch)
        is_same_run = bool(self.run_id) and known[size : size + _RUN_BYTES] == self._run()
        return bool(size) and known[:size] == self.micro_batch and not is_same_run

    def _run(self) -> bytes:
        return digest(self.run_id)[:_RUN_BYTES]


class TopicRows(NamedTuple):
    topic: str
    rows: int
    #: Two sums of 64 bits over all rows.
    sum: int
    mixed_sum: int


class RowDigest:
    """The rows of one task."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicRows] = {}

    def add(self, topic: str, columns: MessageColumns) -> None:
        hashes = _row_hashes(columns)
        found = TopicRows(topic, len(hashes), _total(hashes), _total(_mix(hashes)))
        self._topics[topic] = _plus(self._topics[topic], found) if topic in self._topics else found

    def topics(self) -> tuple[TopicRows, ...]:
        return tuple(self._topics.values())


def rows_content(parts: Iterable[TopicRows]) -> bytes:
    """The digest of all rows of a write, from what its tasks have found."""
    topics: dict[str, TopicRows] = {}
    for part in parts:
        topics[part.topic] = _plus(topics[part.topic], part) if part.topic in topics else part
    return digest([list(topics[name]) for name in sorted(topics)])


def _plus(one: TopicRows, other: TopicRows) -> TopicRows:
    sums = ((one.sum + other.sum) & _MASK, (one.mixed_sum + other.mixed_sum) & _MASK)
    return TopicRows(one.topic, one.rows + other.rows, *sums)


def _row_hashes(columns: MessageColumns) -> np.ndarray:
    total = np.zeros(len(columns.values), np.uint64)
    parts = (columns.values, None), (columns.keys, None), (columns.headers, b"")
    for factor, (column, absent) in zip(_FACTORS, parts, strict=False):
        if column is not None:
            hashes = _hashes(column, absent)
            # If no row of a batch has a key, there is no column of keys. A row without one must not depend on that.
            total = np.where(hashes, _mix(total + hashes * np.uint64(factor)), total)
    if columns.times_ms is not None:
        times = np.asarray(columns.times_ms).astype(np.uint64)
        total = _mix(total + times * np.uint64(_FACTORS[-1]))
    return total


def _hashes(column: Any, absent: bytes | None) -> np.ndarray:
    """A hash of each value; 0 for those that are `absent`. Null and b"" are different keys."""
    values = column.to_pylist()
    hashes: Iterable[int] = map(xxhash.xxh3_64_intdigest, values)
    if column.null_count or absent is not None:
        hashes = (0 if value == absent else xxhash.xxh3_64_intdigest(value) for value in values)
    return np.fromiter(hashes, np.uint64, len(values))


def _mix(hashes: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64: a sum of mixed hashes does not follow from the sum of the hashes."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = hashes ^ (hashes >> np.uint64(31))
    return mixed


def _total(hashes: np.ndarray) -> int:
    return int(np.add.reduce(hashes, dtype=np.uint64))
