"""The inbox's row in PostgreSQL, through psycopg 3.

READ COMMITTED, PostgreSQL's default, is enough. Only one row needs protection, and only guarded updates change it: an
update that finds the row locked waits for the other transaction, and then evaluates its `where` again on the new
row. So of two consumers one changes the row, and the other changes none and gets Fenced; there is no gap between check
and change. Stricter isolation levels work as well: there the loser gets a serialization failure, and Fenced at its next
attempt.

The step is the last statement of its transaction, so that the row is locked only briefly: a consumer that hangs in its
work, or whose machine is gone, does not keep its successor from taking over.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow, tuple_row

from oncemq.client.inbox.database import ENDED, INSIDE, Key, Row, Step, fenced, quoted


def checked(connection: object) -> psycopg.Connection[Any]:
    """Return the connection. Raises TypeError if it is not one of psycopg 3."""
    if not isinstance(connection, psycopg.Connection):
        kind = type(connection)
        raise TypeError(
            "an inbox takes a sqlite3.Connection or a psycopg.Connection (psycopg 3, not its asyncio form), "
            f"not {kind.__module__}.{kind.__name__}"
        )
    return connection


class PostgresInbox:
    """An `InboxDatabase` on a psycopg connection."""

    def __init__(self, connection: psycopg.Connection[Any], table: str) -> None:
        self._connection = connection
        self._table = quoted(table)
        self._transaction: AbstractContextManager[psycopg.Transaction] | None = None
        self._step: Step | None = None
        #: The id of the transaction that was begun: after a commit inside the block it is another one.
        self._transaction_id = 0

    def open_row(self, key: Key, mine: Row, decide: Callable[[Row], Row]) -> Row:
        self._refuse_inside()
        self._make_table()
        with self._connection.transaction():
            # After this the row exists, ours or that of another consumer that was quicker.
            self._run(
                f"insert into {self._table} (topic_id, subscriber, topic, epoch, position, version)"
                " values (%s, %s, %s, %s, %s, %s) on conflict do nothing",
                (key.topic_id, key.subscriber, key.topic, mine.epoch, mine.position, mine.version),
            )
            found = self._read(key, "for update")
            assert found is not None
            row = decide(found)
            self._run(
                f"update {self._table} set epoch = %s, position = %s where topic_id = %s and subscriber = %s",
                (row.epoch, row.position, key.topic_id, key.subscriber),
            )
        return row

    def _make_table(self) -> None:
        """Check first: a user that may not create tables may still use one that exists."""
        try:
            with self._connection.transaction():
                if self._run("select to_regclass(%s) is null", (self._table,)).fetchone() == (True,):
                    self._run(
                        f"create table if not exists {self._table} (topic_id bigint not null,"
                        " subscriber text not null, topic text not null, epoch bigint not null,"
                        " position bigint not null, version integer not null, primary key (topic_id, subscriber))"
                    )
        except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject):
            # Another consumer created it at the same moment, which `if not exists` does not see.
            pass

    def read_row(self, key: Key) -> Row | None:
        self._refuse_inside()
        with self._connection.transaction():
            return self._read(key, "")

    def _read(self, key: Key, lock: str) -> Row | None:
        found = self._run(
            f"select version, epoch, position from {self._table} where topic_id = %s and subscriber = %s {lock}",
            (key.topic_id, key.subscriber),
        ).fetchone()
        return None if found is None else Row(*found)

    def begin(self, step: Step) -> None:
        self._refuse_inside()
        transaction = self._connection.transaction()
        transaction.__enter__()
        self._transaction, self._step = transaction, step
        self._transaction_id = self._one("select txid_current()", ())

    def commit(self) -> None:
        step = self._step
        assert step is not None
        status = self._connection.info.transaction_status
        if status == TransactionStatus.IDLE:
            raise RuntimeError(ENDED)
        if status == TransactionStatus.INERROR:
            # COMMIT would roll back without an error.
            raise RuntimeError("a statement in the inbox's transaction failed, and its error was swallowed")
        moved_in = self._one(
            f"update {self._table} set position = %s where topic_id = %s and subscriber = %s and epoch = %s"
            " and position = %s returning txid_current()",
            (step.new, step.key.topic_id, step.key.subscriber, step.epoch, step.old),
        )
        if moved_in == 0:
            raise fenced(step.key)
        if moved_in != self._transaction_id:
            raise RuntimeError(ENDED)
        self._end(None)

    def rollback(self) -> None:
        self._end(psycopg.Rollback())

    def _end(self, error: psycopg.Rollback | None) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.__exit__(type(error) if error else None, error, None)

    def weakness(self) -> str:
        with self._connection.transaction():
            found = self._run("select current_setting('synchronous_commit'), current_setting('fsync')").fetchone()
        assert found is not None
        names = [name for name, value in zip(("synchronous_commit", "fsync"), found, strict=True) if value == "off"]
        return f"PostgreSQL's {' and '.join(names)} is off; switch it on" if names else ""

    # Statements. They use their own cursor: the connection's factories may change rows and placeholders.

    def _run(self, sql: str, parameters: tuple[Any, ...] = ()) -> psycopg.Cursor[TupleRow]:
        return psycopg.Cursor(self._connection, row_factory=tuple_row).execute(sql, parameters)

    def _one(self, sql: str, parameters: tuple[Any, ...]) -> int:
        """Return the only value of the only row; 0: there is none."""
        found = self._run(sql, parameters).fetchone()
        return 0 if found is None else int(found[0])

    def _refuse_inside(self) -> None:
        if self._connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
            raise RuntimeError(INSIDE)
