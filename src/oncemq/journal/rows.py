"""What a group changes in the tables that people query, as plain rows.

Who appends a group says it, where the journal wants to know (`Journal.tables_wanted`). A journal writes rows and knows
nothing of what they mean.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: Nothing, what each group changes, or all there is, since what the tables hold is out of date.
TablesWanted = Literal["", "changes", "all"]


class TopicRow(msgspec.Struct, frozen=True, gc=False):
    id: int
    name: str
    #: Messages deleted so far: the first offset that is still stored.
    bias: int
    next_offset: int


class ConsumerKey(msgspec.Struct, frozen=True, gc=False):
    topic_id: int
    id: str
    #: "" where it is subscribed to this very topic.
    pattern: str


class ConsumerRow(msgspec.Struct, frozen=True, gc=False):
    key: ConsumerKey
    topic: str
    position: int


class PatternGone(msgspec.Struct, frozen=True, gc=False):
    """A subscription by pattern that has ended, on however many topics."""

    id: str
    pattern: str
    #: Of the topics that match it, those that are still there: the others went with it.
    topics_left: tuple[int, ...]


class ProducerRow(msgspec.Struct, frozen=True, gc=False):
    id: str
    topic: str


class BatchRow(msgspec.Struct, frozen=True, gc=False):
    """A stored batch that can be seen, by the position of its record."""

    position: int
    first_offset: int
    time_ms: int


class Rows(msgspec.Struct, frozen=True):
    """`…_gone` are taken out first, then the others put in, over what is there.

    Batches of this group's own records are visible at their `first_offset`, with the group's time, and need no row."""

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
    #: Topics, consumers and producers are all there are.
    has_all_names: bool = False
    #: Batches are all there are, too.
    has_all: bool = False
    #: Nothing of it is known: from here on the tables are out of date.
    are_stale: bool = False

    @property
    def count(self) -> int:
        """Of the rows that are written or taken out, about."""
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
