"""Rows of the SQL tables that a group changes.

The broker computes them (broker/sql_projection.py) if the journal has tables (`Journal.tables_wanted`). The journal
writes them without knowing what they mean.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: No rows; the rows that a group changes; or all rows, because the tables are out of date.
TablesWanted = Literal["", "changes", "all"]


class TopicRow(msgspec.Struct, frozen=True, gc=False):
    id: int
    name: str
    #: Number of messages deleted so far, which is the first offset that is still stored.
    bias: int
    next_offset: int


class ConsumerKey(msgspec.Struct, frozen=True, gc=False):
    topic_id: int
    id: str
    #: "" if it is subscribed to this topic by name.
    pattern: str


class ConsumerRow(msgspec.Struct, frozen=True, gc=False):
    key: ConsumerKey
    topic: str
    position: int


class PatternGone(msgspec.Struct, frozen=True, gc=False):
    """A subscription by pattern that was deleted, on any number of topics."""

    id: str
    pattern: str
    #: Of the topics that match it, those that still exist. The others were deleted with it.
    topics_left: tuple[int, ...]


class ProducerRow(msgspec.Struct, frozen=True, gc=False):
    id: str
    topic: str


class BatchRow(msgspec.Struct, frozen=True, gc=False):
    """A stored batch that is visible, by the position of its record."""

    position: int
    first_offset: int
    time_ms: int


class Rows(msgspec.Struct, frozen=True):
    """`…_gone` are deleted first, then the others are inserted or updated.

    Batches of the group's own records are visible at their `first_offset`, with the group's time, without a row."""

    topics: tuple[TopicRow, ...] = ()
    topics_gone: tuple[int, ...] = ()
    consumers: tuple[ConsumerRow, ...] = ()
    consumers_gone: tuple[ConsumerKey, ...] = ()
    patterns_gone: tuple[PatternGone, ...] = ()
    producers: tuple[ProducerRow, ...] = ()
    producers_gone: tuple[str, ...] = ()
    batches: tuple[BatchRow, ...] = ()
    #: Positions.
    batches_gone: tuple[int, ...] = ()
    #: These are all topics, consumers and producers that exist.
    has_all_names: bool = False
    #: These are all batches as well.
    has_all: bool = False
    #: The rows are not known: from now on the tables are out of date.
    are_stale: bool = False

    @property
    def count(self) -> int:
        """Return about how many rows are written or deleted."""
        changed = (
            self.topics,
            self.topics_gone,
            self.consumers,
            self.consumers_gone,
            self.producers,
            self.producers_gone,
            self.batches,
            self.batches_gone,
            *(gone.topics_left for gone in self.patterns_gone),
        )
        return sum(map(len, changed)) * (2 if self.has_all or self.has_all_names else 1)
