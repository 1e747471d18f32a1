"""What an inbox needs of a database: one row, which is changed in the same transaction as the user's own tables.

    oncemq_inbox
      topic_id    a topic that is deleted and created again has another id, and so another row
      subscriber
      topic       the topic's name, for people
      epoch       the subscription's epoch: its consumer owns the row
      position    all offsets below are processed
      version     the version of this format: 1
      primary key (topic_id, subscriber)

The row is changed in three ways only. Opening it raises `epoch`; an epoch that is not higher raises Fenced. A seek also
raises `epoch`, and moves `position` anywhere. A step moves it `where epoch = mine and position = old`: if that changes
no row, it raises Fenced.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from oncemq.protocol import errors

ROW_VERSION = 1
TABLE = "oncemq_inbox"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", re.ASCII)


class Key(msgspec.Struct, frozen=True):
    """The key of a row."""

    topic_id: int
    subscriber: str
    topic: str


class Row(msgspec.Struct, frozen=True):
    """The values of a row."""

    version: int
    epoch: int
    position: int


class Step(msgspec.Struct, frozen=True):
    """A change of the position in one transaction."""

    key: Key
    epoch: int
    old: int
    new: int


class InboxDatabase(Protocol):
    """The contract of a database. A connection that fails raises its driver's own errors."""

    def open_row(self, key: Key, mine: Row, decide: Callable[[Row], Row]) -> Row:
        """In one transaction: create the table and the row (as `mine`) if they are missing, and store what `decide`
        returns for the row. No other transaction can change it in between. If `decide` raises, nothing is changed."""

    def read_row(self, key: Key) -> Row | None:
        """Return the committed row."""

    def begin(self, step: Step) -> None:
        """Begin a write transaction for this step. Raises Fenced, or RuntimeError if the connection is inside a
        transaction."""

    def commit(self) -> None:
        """Commit what was done since `begin`, together with the step. Raises Fenced, or RuntimeError if the caller has
        ended the transaction."""

    def rollback(self) -> None:
        """Undo what was done since `begin`. It does nothing if there is no transaction."""

    def weakness(self) -> str:
        """Return why a power failure may undo a commit; empty if it can't."""


def quoted(table: str) -> str:
    """Return the table's name quoted for SQL, with its schema if there is one. Raises SettingInvalid.

    >>> quoted("app.inbox")
    '"app"."inbox"'
    """
    if not _NAME.fullmatch(table):
        raise errors.SettingInvalid(f"an inbox's table is NAME or SCHEMA.NAME in ASCII letters, not {table!r}")
    return ".".join(f'"{part}"' for part in table.split("."))


def fenced(key: Key) -> errors.SubscriptionFenced:
    """Return the error of a consumer that has lost the row to another one."""
    return errors.SubscriptionFenced(
        f"another consumer took over '{key.subscriber}' on '{key.topic}' in the database; nothing was stored"
    )


def _refuse_row(key: Key, found: Row, epoch: int) -> None:
    """Raise VersionUnsupported or Fenced if this consumer may not change the row."""
    if found.version > ROW_VERSION:
        raise errors.VersionUnsupported(f"the inbox's row has version {found.version}; upgrade OnceMQ")
    # The same epoch is our own: the reply to its commit was lost.
    if found.epoch > epoch:
        raise fenced(key)


def moved(key: Key, found: Row, epoch: int, acked: int) -> Row:
    """Return the row after a seek. Raises VersionUnsupported, Fenced."""
    _refuse_row(key, found, epoch)
    return Row(found.version, epoch, acked)


def taken_over(key: Key, found: Row, epoch: int, acked: int, skip_to: int) -> Row:
    """Return the row of its new owner. Raises VersionUnsupported, Fenced, InboxRewound."""
    _refuse_row(key, found, epoch)
    position = max(found.position, skip_to)
    if position < acked:
        raise errors.InboxRewound(
            f"the database has processed everything below {found.position}, but '{key.subscriber}' on '{key.topic}' was"
            f" acked up to {acked}: the database was restored from an older copy, or the subscription was used without"
            f" it. Messages {found.position} to {acked - 1} would be missing"
        )
    return Row(found.version, epoch, position)


INSIDE = (
    "the connection is inside a transaction. An inbox begins its own: commit or roll back what was begun before"
    " (a select begins one too, unless the connection is in autocommit mode)"
)
ENDED = (
    "the inbox's transaction was ended inside the block, so that effect and position may have come apart."
    " Leave commit and rollback to the inbox; raise an exception to undo"
)


def database_of(connection: object, table: str) -> InboxDatabase:
    """Return the database of a connection. Raises TypeError, MissingExtra, SettingInvalid."""
    if isinstance(connection, sqlite3.Connection):
        from oncemq.client.inbox.sqlite import SqliteInbox

        return SqliteInbox(connection, table)
    postgres = _postgres(connection)
    found: InboxDatabase = postgres.PostgresInbox(postgres.checked(connection), table)
    return found


def _postgres(connection: object) -> Any:
    try:
        from oncemq.client.inbox import postgres as inbox_postgres
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "psycopg":
            raise
        kind = type(connection)
        raise errors.MissingExtra(
            f"an inbox takes a sqlite3.Connection or a psycopg.Connection, not {kind.__module__}.{kind.__name__};"
            " for PostgreSQL: pip install 'oncemq[postgres]'"
        ) from None
    return inbox_postgres
