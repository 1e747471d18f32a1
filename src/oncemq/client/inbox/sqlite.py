"""The inbox's row in SQLite.

The step is the first statement of its transaction, before the user's statements: a commit inside the block, by `with
connection:` or `executescript`, then stores effect and position together, or neither. A savepoint tells afterwards
whether it is still the same transaction.

`BEGIN IMMEDIATE` takes the write lock immediately; a plain `BEGIN` could fail to get it in the middle of the work. This
does not depend on the connection's `isolation_level`. With `autocommit=False` (Python 3.12) Python keeps a transaction
open at all times: the step is the first statement of that transaction, and takes the lock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from oncemq.client.inbox.database import ENDED, INSIDE, Key, Row, Step, fenced, quoted

_SAVEPOINT = "oncemq_inbox_block"
#: Values of PRAGMA synchronous.
_NORMAL, _FULL = 1, 2


class SqliteInbox:
    """An `InboxDatabase` on a sqlite3 connection."""

    def __init__(self, connection: sqlite3.Connection, table: str) -> None:
        self._connection = connection
        self._table = quoted(table)
        #: The inbox has begun a transaction, as far as is known.
        self._has_begun = False

    def open_row(self, key: Key, mine: Row, decide: Callable[[Row], Row]) -> Row:
        self._begin()
        try:
            self._make_row(key, mine)
            found = self.read_row(key)
            assert found is not None
            row = decide(found)
            self._run(
                f"update {self._table} set epoch = ?, position = ? where topic_id = ? and subscriber = ?",
                (row.epoch, row.position, key.topic_id, key.subscriber),
            )
            self._end("COMMIT")
        except BaseException:
            self.rollback()
            raise
        return row

    def _make_row(self, key: Key, mine: Row) -> None:
        self._run(
            f"create table if not exists {self._table} (topic_id integer not null, subscriber text not null,"
            " topic text not null, epoch integer not null, position integer not null, version integer not null,"
            " primary key (topic_id, subscriber))"
        )
        self._run(
            f"insert into {self._table} (topic_id, subscriber, topic, epoch, position, version)"
            " values (?, ?, ?, ?, ?, ?) on conflict do nothing",
            (key.topic_id, key.subscriber, key.topic, mine.epoch, mine.position, mine.version),
        )

    def read_row(self, key: Key) -> Row | None:
        found = self._run(
            f"select version, epoch, position from {self._table} where topic_id = ? and subscriber = ?",
            (key.topic_id, key.subscriber),
        ).fetchone()
        return None if found is None else Row(*found)

    def begin(self, step: Step) -> None:
        key = step.key
        self._begin()
        try:
            changed = self._run(
                f"update {self._table} set position = ?"
                " where topic_id = ? and subscriber = ? and epoch = ? and position = ?",
                (step.new, key.topic_id, key.subscriber, step.epoch, step.old),
            ).rowcount
            if changed != 1:
                raise fenced(key)
            self._run(f"SAVEPOINT {_SAVEPOINT}")
        except BaseException:
            self.rollback()
            raise

    def commit(self) -> None:
        try:
            self._run(f"RELEASE {_SAVEPOINT}")
        except sqlite3.OperationalError as error:
            if "no such savepoint" not in str(error):
                raise
            raise RuntimeError(ENDED) from None
        self._end("COMMIT")

    def rollback(self) -> None:
        if self._has_begun and self._connection.in_transaction:
            self._end("ROLLBACK")
        self._has_begun = False

    def weakness(self) -> str:
        level = self._run("PRAGMA synchronous").fetchone()[0]
        mode = str(self._run("PRAGMA journal_mode").fetchone()[0]).lower()
        if level < _NORMAL or (level < _FULL and mode == "wal"):
            return f"SQLite's synchronous is {('OFF', 'NORMAL')[level]} with journal_mode {mode}; set it to FULL"
        return ""

    # Statements. They use their own cursor: the connection's factories may change rows.

    def _run(self, sql: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        return sqlite3.Cursor(self._connection).execute(sql, parameters)

    @property
    def _python_begins(self) -> bool:
        """`autocommit=False` of Python 3.12: a transaction is always open."""
        return getattr(self._connection, "autocommit", None) is False

    def _begin(self) -> None:
        if not self._python_begins:
            if self._connection.in_transaction:
                raise RuntimeError(INSIDE)
            self._run("BEGIN IMMEDIATE")
        self._has_begun = True

    def _end(self, how: str) -> None:
        if not self._python_begins:
            # Not `connection.commit()`, which does nothing with `autocommit=True`.
            self._run(how)
        elif how == "COMMIT":
            self._connection.commit()
        else:
            self._connection.rollback()
        self._has_begun = False
