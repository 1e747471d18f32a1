"""Writes a group to PostgreSQL: one transaction, sent as a whole, so that it costs one round trip.

After an error the server skips all following statements, including the COMMIT.

A *heavy* group may take longer than a lease. It is sent statement by statement: a server that is busy with one
statement does not read the next, and the connection would look dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import psycopg
import xxhash

from oncemq.journal.contract import Group, Record, group_bytes
from oncemq.journal.postgres.arrays import Byteas, Int8s, signed
from oncemq.journal.postgres.connection import Connection
from oncemq.journal.postgres.lease import Lease
from oncemq.journal.postgres.sql import query
from oncemq.journal.postgres.tables import statements

#: Slower than any usable server.
_ROW_MS = 0.2
_BYTES_PER_MS = 8 * 1024
_HEAVY_SHARE = 0.5


def heavy_ms(group: Group, size: int, lease_ms: int) -> int:
    """Return how long the group may take if that is a large part of a lease, and otherwise 0."""
    rows = group.rows.count if group.rows is not None else 0
    may_take_ms = round(rows * _ROW_MS + size / _BYTES_PER_MS)
    return may_take_ms if may_take_ms > lease_ms * _HEAVY_SHARE else 0


def group_checksum(seed: int, sequence: int, position: int, size: int, time_ms: int, events: bytes) -> int:
    """Return the checksum of a group's row, as PostgreSQL stores it."""
    digest = xxhash.xxh3_64(b"%d %d %d %d " % (sequence, position, size, time_ms), seed=seed)
    digest.update(events)
    return signed(digest.intdigest())


def append_group(
    connection: Connection,
    lease: Lease,
    seed: int,
    sequence: int,
    position: int,
    size: int,
    group: Group,
    may_take_ms: int = 0,
) -> None:
    """Append a group. It is committed when this returns. After psycopg.Error it is not known whether it is."""
    # The rows are packed before the transaction begins, to keep the transaction short.
    tables = list(statements(group.rows)) if group.rows is not None else []
    checksum = group_checksum(seed, sequence, position, size, group.time_ms, group.events)
    row = (sequence, position, size, group.time_ms, checksum, group.events)
    with nullcontext() if may_take_ms else connection.pipeline():
        connection.execute("begin")
        term = (lease.term, sequence - 1, sequence, position + size, lease.lease_ms + may_take_ms)
        connection.execute(query("keep_term"), term)
        connection.execute(query("append_group"), row)
        if group.records:
            connection.execute(query("append_records"), (group.time_ms, *_columns(group.records)))
        for name, values in tables:
            connection.execute(query(name), values)
        done = connection.execute("commit")
    if done.statusmessage != "COMMIT":
        raise psycopg.OperationalError(f"the transaction ended with {done.statusmessage}")
    connection.check_replicated()


def append_first_group(connection: Connection, journal_id: bytes, position: int, events: bytes) -> None:
    """Append a group to a new journal, in the transaction that creates it."""
    used = group_bytes(Group(0, events, ()))
    size = used + -used % 8
    checksum = group_checksum(journal_seed(journal_id), 1, position, size, 0, events)
    connection.execute(query("append_group"), (1, position, size, 0, checksum, events))
    connection.execute(query("begin_after"), (1, position + size))


def journal_seed(journal_id: bytes) -> int:
    return xxhash.xxh3_64_intdigest(journal_id)


def _columns(records: Sequence[Record]) -> tuple[Int8s | Byteas, ...]:
    return (
        Int8s([record.position for record in records]),
        Int8s([record.topic_id for record in records]),
        Int8s([record.first_offset for record in records]),
        Int8s([record.count for record in records]),
        Int8s([signed(record.checksum) for record in records]),
        Byteas([record.payload for record in records]),
    )
