"""Rows as statements: the tables that people query, within the transaction that appends a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from oncemq.journal.postgres.arrays import Int8s, Texts
from oncemq.journal.rows import ConsumerKey, Rows

Statement = tuple[str, tuple[Any, ...]]
Row = TypeVar("Row")

#: Of one statement: a value has at most 1 GB, and what is packed is in memory twice.
_ROWS_MAX = 50_000


def statements(rows: Rows) -> Iterator[Statement]:
    """Names of queries, and what they take; in the order in which they have to run, behind the records."""
    if rows.are_stale:
        yield "tables_are_stale", ()
        return
    yield from _removals(rows)
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


def _removals(rows: Rows) -> Iterator[Statement]:
    if rows.has_all:
        yield "hide_all_batches", ()
    else:
        for positions in _parts(rows.batches_gone):
            yield "hide_batches", (Int8s(positions),)
    if rows.has_all or rows.has_all_names:
        yield "remove_all_topics", ()
        yield "remove_all_consumers", ()
        yield "remove_all_producers", ()
        return
    for topics in _parts(rows.topics_gone):
        yield "remove_topics", (Int8s(topics),)
    # Behind those: a topic that takes its consumers along is not to be gone before.
    for gone in rows.patterns_gone:
        yield "remove_pattern", (gone.id, gone.pattern, Int8s(gone.topics_left))
    for consumers in _parts(rows.consumers_gone):
        yield "remove_consumers", _keys(consumers)
    for producers in _parts(rows.producers_gone):
        yield "remove_producers", (Texts(producers),)


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    for at in range(0, len(rows), _ROWS_MAX):
        yield rows[at : at + _ROWS_MAX]


def _keys(keys: Sequence[ConsumerKey]) -> tuple[Int8s, Texts, Texts]:
    return Int8s([key.topic_id for key in keys]), Texts(key.id for key in keys), Texts(key.pattern for key in keys)
