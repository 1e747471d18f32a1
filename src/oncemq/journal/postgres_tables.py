"""Rows as statements: the tables that people query, within the transaction that appends a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oncemq.journal.postgres_arrays import Int8s, Texts
from oncemq.journal.tables import ConsumerKey, Rows

Statement = tuple[str, tuple[Any, ...]]


def statements(rows: Rows) -> Iterator[Statement]:
    """Names of queries, and what they take; in the order in which they have to run, behind the records."""
    yield from _removals(rows)
    if rows.topics:
        yield "put_topics", (
            Int8s([row.id for row in rows.topics]),
            Texts(row.name for row in rows.topics),
            Int8s([row.bias for row in rows.topics]),
            Int8s([row.next_offset for row in rows.topics]),
        )
    if rows.consumers:
        yield "put_consumers", (
            *_keys([row.key for row in rows.consumers]),
            Texts(row.topic for row in rows.consumers),
            Int8s([row.position for row in rows.consumers]),
        )
    if rows.producers:
        yield "put_producers", (Texts(row.id for row in rows.producers), Texts(row.topic for row in rows.producers))
    if rows.batches:
        yield "show_batches", (
            Int8s([row.position for row in rows.batches]),
            Int8s([row.first_offset for row in rows.batches]),
            Int8s([row.time_ms for row in rows.batches]),
        )
    if rows.has_all:
        yield "all_tables_are_current", ()


def _removals(rows: Rows) -> Iterator[Statement]:
    if rows.has_all:
        yield "hide_all_batches", ()
    elif rows.batches_gone:
        yield "hide_batches", (Int8s(rows.batches_gone),)
    if rows.has_all or rows.has_all_names:
        yield "remove_all_topics", ()
        yield "remove_all_consumers", ()
        yield "remove_all_producers", ()
        return
    if rows.topics_gone:
        yield "remove_topics", (Int8s(rows.topics_gone),)
    if rows.consumers_gone:
        yield "remove_consumers", _keys(rows.consumers_gone)
    if rows.producers_gone:
        yield "remove_producers", (Texts(rows.producers_gone),)


def _keys(keys: list[ConsumerKey] | tuple[ConsumerKey, ...]) -> tuple[Int8s, Texts, Texts]:
    return Int8s([key.topic_id for key in keys]), Texts(key.id for key in keys), Texts(key.pattern for key in keys)
