"""Rows as SQL statements. They update the tables that users query, in the transaction that appends the group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from oncemq.journal.postgres.arrays import Int8s, Texts
from oncemq.journal.rows import ConsumerKey, Rows

Statement = tuple[str, tuple[Any, ...]]
Row = TypeVar("Row")

#: Maximum rows of one statement: a value has at most 1 GB, and packed arrays are in memory twice.
_ROWS_MAX = 50_000


def statements(rows: Rows) -> Iterator[Statement]:
    """Yield names and parameters of queries, in the order in which they have to run, after the records."""
    if rows.are_stale:
        yield "tables_are_stale", ()
        return
    yield from _deletions(rows)
    for topics in _parts(rows.topics):
        yield (
            "put_topics",
            (
                Int8s([row.id for row in topics]),
                Texts(row.name for row in topics),
                Int8s([row.bias for row in topics]),
                Int8s([row.next_offset for row in topics]),
            ),
        )
    for consumers in _parts(rows.consumers):
        yield (
            "put_consumers",
            (
                *_keys([row.key for row in consumers]),
                Texts(row.topic for row in consumers),
                Int8s([row.position for row in consumers]),
            ),
        )
    for producers in _parts(rows.producers):
        yield "put_producers", (Texts(row.id for row in producers), Texts(row.topic for row in producers))
    for batches in _parts(rows.batches):
        yield (
            "show_batches",
            (
                Int8s([row.position for row in batches]),
                Int8s([row.first_offset for row in batches]),
                Int8s([row.time_ms for row in batches]),
            ),
        )
    if rows.has_all:
        yield "all_tables_are_current", ()


def _deletions(rows: Rows) -> Iterator[Statement]:
    if rows.has_all:
        yield "hide_all_batches", ()
    else:
        for positions in _parts(rows.batches_gone):
            yield "hide_batches", (Int8s(positions),)
    if rows.has_all or rows.has_all_names:
        yield "delete_all_topics", ()
        yield "delete_all_consumers", ()
        yield "delete_all_producers", ()
        return
    for topics in _parts(rows.topics_gone):
        yield "delete_topics", (Int8s(topics),)
    # After those: `delete_topics` deletes the consumers of a topic only while the topic exists.
    for gone in rows.patterns_gone:
        yield "delete_pattern", (gone.id, gone.pattern, Int8s(gone.topics_left))
    for consumers in _parts(rows.consumers_gone):
        yield "delete_consumers", _keys(consumers)
    for producers in _parts(rows.producers_gone):
        yield "delete_producers", (Texts(producers),)


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    for at in range(0, len(rows), _ROWS_MAX):
        yield rows[at : at + _ROWS_MAX]


def _keys(keys: Sequence[ConsumerKey]) -> tuple[Int8s, Texts, Texts]:
    return Int8s([key.topic_id for key in keys]), Texts(key.id for key in keys), Texts(key.pattern for key in keys)
