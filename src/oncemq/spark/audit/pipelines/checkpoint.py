"""Reads what a checkpoint says: which offsets each micro-batch covered, and which micro-batches were completed.

    metadata     the id of the query
    offsets/N    where micro-batch N ends on each source; written before it runs
    commits/N    micro-batch N is complete

Spark deletes old entries (by default it keeps about a hundred), so the first ones may be missing. A missing entry
between two others is a fault.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from oncemq.protocol import errors
from oncemq.spark.source.offsets import Offsets, parse_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CoveredRange(msgspec.Struct, frozen=True):
    """The offsets [start, stop) of a topic that a micro-batch read."""

    source: int
    topic: str
    topic_id: int
    start: int
    stop: int


class Batch(msgspec.Struct, frozen=True):
    number: int
    is_committed: bool
    ranges: tuple[CoveredRange, ...]
    #: False: the previous entry is missing, so it is not known where this micro-batch starts.
    is_start_known: bool = True

    @property
    def messages(self) -> int:
        return sum(each.stop - each.start for each in self.ranges)


class CheckpointFault(msgspec.Struct, frozen=True):
    kind: str
    batch: int
    detail: str


class Checkpoint(msgspec.Struct, frozen=True):
    query_id: str
    #: In the order of their numbers.
    batches: tuple[Batch, ...]
    faults: tuple[CheckpointFault, ...]
    #: By source: the positions after the last complete micro-batch.
    committed_ends: tuple[Offsets | None, ...] = ()
    #: What the oldest entry, and those that were deleted before it, may have covered. Empty if none was deleted.
    earlier: tuple[CoveredRange, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the first micro-batch of the query is among the entries."""
        return bool(self.batches) and self.batches[0].number == 0

    @property
    def last_committed(self) -> int:
        return max((batch.number for batch in self.batches if batch.is_committed), default=-1)

    @property
    def last_planned(self) -> int:
        return self.batches[-1].number if self.batches else -1

    @property
    def topic_names(self) -> dict[int, str]:
        """The names of the topics by their ids."""
        return {each.topic_id: each.topic for each in (*self.earlier, *self.ranges(committed_only=False))}

    def ranges(self, *, committed_only: bool) -> list[CoveredRange]:
        """What the micro-batches cover, with adjacent ranges joined."""
        found: dict[tuple[int, str, int], CoveredRange] = {}
        joined: list[CoveredRange] = []
        for batch in self.batches:
            if committed_only and not batch.is_committed:
                continue
            for each in batch.ranges:
                key = (each.source, each.topic, each.topic_id)
                last = found.get(key)
                if last is not None and last.stop == each.start:
                    found[key] = msgspec.structs.replace(last, stop=each.stop)
                else:
                    joined += [last] if last is not None else []
                    found[key] = each
        return sorted([*joined, *found.values()], key=lambda each: (each.source, each.topic, each.start))


#: Raw entries by their numbers.
Entries = Mapping[int, str]


def read_checkpoint(spark: SparkSession, location: str, sources: int) -> Checkpoint:
    """`sources` is the number of sources of the pipeline. Raises SettingInvalid if there is no checkpoint."""
    metadata = _read_folder(spark, location, "").get(-1)
    if metadata is None:
        raise errors.SettingInvalid(
            f"there is no checkpoint in {location}: the pipeline never ran, or its folder moved"
        )
    # The entries of completed micro-batches are read first: the query may be running.
    commits = _read_folder(spark, location, "commits")
    return build_checkpoint(json.loads(metadata)["id"], _read_folder(spark, location, "offsets"), commits, sources)


def build_checkpoint(query_id: str, offsets: Entries, commits: Entries, sources: int | None = None) -> Checkpoint:
    """A pipeline with dead letters reads its sources twice, and an entry then contains each of them twice: `sources`
    says how many are different, which come first (None = all)."""
    faults = list(_number_faults(offsets, commits))
    batches: list[Batch] = []
    previous: Sequence[Offsets | None] = ()
    committed: tuple[Offsets | None, ...] = ()
    earlier: tuple[CoveredRange, ...] = ()
    before = -1
    for number, raw in sorted(offsets.items()):
        ends = _parse_entry(raw, sources)
        if ends is None:
            faults.append(CheckpointFault("checkpoint_unreadable", number, f"offsets/{number} can't be parsed"))
            continue
        is_known = number == 0 or number == before + 1
        # Spark plans a micro-batch when the previous one is complete.
        is_committed = number in commits or number < max(offsets)
        ranges = tuple(_ranges(previous, ends, number, faults))
        if is_known or previous:
            batches.append(Batch(number, is_committed, ranges, is_known))
        else:
            # The oldest entry says where it ends, and where the next one starts.
            batches.append(Batch(number, is_committed, (), is_start_known=False))
            earlier = tuple(_all_below(ends))
        previous, before = _latest(previous, ends), number
        committed = tuple(previous) if is_committed else committed
    return Checkpoint(query_id, tuple(batches), tuple(faults), committed, earlier)


def _number_faults(offsets: Entries, commits: Entries) -> Iterator[CheckpointFault]:
    if offsets:
        for number in sorted(set(range(min(offsets), max(offsets))) - set(offsets)):
            yield CheckpointFault("checkpoint_gap", number, f"offsets/{number} is missing")
        for number in sorted(set(range(min(offsets), max(offsets))) - set(commits)):
            # The first entry may have lost its commit entry to the clean-up.
            if number != min(offsets) and number in offsets:
                yield CheckpointFault("checkpoint_gap", number, f"commits/{number} is missing")
    for number in sorted(set(commits) - set(offsets)):
        if not offsets or number > max(offsets):
            yield CheckpointFault("checkpoint_gap", number, f"commits/{number} exists, and offsets/{number} does not")


def _parse_entry(raw: str, sources: int | None) -> list[Offsets | None] | None:
    """The ends of the sources. A source without an offset yet has none; other sources than topics have none either."""
    lines = raw.splitlines()
    if len(lines) < 3 or not lines[0].startswith("v"):
        return None
    try:
        return [_parse_source(line) for line in lines[2:][:sources]]
    except (ValueError, KeyError, TypeError):
        return None


def _parse_source(line: str) -> Offsets | None:
    found: Any = None if line == "-" else json.loads(line)
    return parse_offsets(found) if isinstance(found, dict) and "topics" in found else None


def _ranges(
    previous: Sequence[Offsets | None], ends: Sequence[Offsets | None], number: int, faults: list[CheckpointFault]
) -> Iterator[CoveredRange]:
    for source, end in enumerate(ends):
        before = previous[source] if source < len(previous) else None
        for topic, at in (end.topics if end else {}).items():
            assert end is not None
            known = before.topics.get(topic) if before else None
            if known is not None and known.topic_id != at.topic_id:
                known = None
            start = end.starts.get(topic, known.offset if known else None)
            if start is None:
                # The start of a topic is in the entry of its first micro-batch, which may have been deleted.
                continue
            if known is not None and start != known.offset:
                kind = "checkpoint_gap" if start > known.offset else "checkpoint_overlap"
                detail = f"'{topic}' continues at offset {start}, but the previous micro-batch ended at {known.offset}"
                faults.append(CheckpointFault(kind, number, detail))
            if at.offset < start:
                detail = f"'{topic}' goes back from offset {start} to {at.offset}"
                faults.append(CheckpointFault("checkpoint_overlap", number, detail))
            elif at.offset > start:
                yield CoveredRange(source, topic, at.topic_id, start, at.offset)


def _all_below(ends: Sequence[Offsets | None]) -> Iterator[CoveredRange]:
    for source, end in enumerate(ends):
        for topic, at in (end.topics if end else {}).items():
            yield CoveredRange(source, topic, at.topic_id, 0, at.offset)


def _latest(previous: Sequence[Offsets | None], ends: Sequence[Offsets | None]) -> list[Offsets | None]:
    """The ends after a micro-batch. A source without new messages keeps its position."""
    kept = [*previous[len(ends) :]]
    return [end or (previous[at] if at < len(previous) else None) for at, end in enumerate(ends)] + kept


# Files.


def _read_folder(spark: SparkSession, location: str, folder: str) -> dict[int, str]:
    """The entries of a folder by their numbers. For the folder of the checkpoint itself: its metadata, as -1."""
    if "://" in location:
        return _read_remote(spark, location, folder)
    path = os.path.join(location, folder)
    names = os.listdir(path) if os.path.isdir(path) else []
    found = {}
    for name in names:
        number = _number(name, folder)
        if number is not None:
            with open(os.path.join(path, name), encoding="utf-8", errors="replace") as file:
                found[number] = file.read()
    return found


def _read_remote(spark: SparkSession, location: str, folder: str) -> dict[int, str]:
    """Through Spark, which wrote them and has the access rights."""
    from pyspark.errors import AnalysisException

    pattern = "[0-9]*" if folder else "metadata"
    path = f"{location.rstrip('/')}/{folder}".rstrip("/")
    try:
        reader = spark.read.option("pathGlobFilter", pattern)
        rows = reader.text(path, wholetext=True).selectExpr("_metadata.file_name AS name", "value").collect()
    except AnalysisException:
        return {}
    return {number: row["value"] for row in rows if (number := _number(row["name"], folder)) is not None}


def _number(name: str, folder: str) -> int | None:
    if not folder:
        return -1 if name == "metadata" else None
    return int(name) if name.isdecimal() else None
