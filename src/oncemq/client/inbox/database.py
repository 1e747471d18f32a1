"""What an inbox needs of a database: one row beside the user's own tables, changed in the user's own transaction.

    oncemq_inbox
      topic_id    a topic that is deleted and made again has another id, and so another row
      subscriber
      topic       the topic's name, for people
      epoch       the subscription's epoch, of the consumer that owns the row
      position    all offsets below are done
      version     of this form: 1
      primary key (topic_id, subscriber)

The row is changed in three ways only. Opening it raises `epoch`; an epoch that is not higher is fenced. A seek does so
too, and moves `position` anywhere. A step moves it `where epoch = mine and position = old`: one row, or fenced.
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
    """Which row."""

    topic_id: int
    subscriber: str
    topic: str


class Row(msgspec.Struct, frozen=True):
    """What is in it."""

    version: int
    epoch: int
    position: int


class Step(msgspec.Struct, frozen=True):
    """A move of the position, which belongs to one transaction."""

    key: Key
    epoch: int
    old: int
    new: int


class InboxDatabase(Protocol):
    """The contract of a database. A connection that fails raises its driver's own errors."""

    def open_row(self, key: Key, mine: Row, decide: Callable[[Row], Row]) -> Row:
        """In a transaction of its own: make the table and the row (as `mine`) where they are missing, and store
        what `decide` makes of the row. Nobody changes it in between. If `decide` raises, nothing is changed."""

    def read_row(self, key: Key) -> Row | None:
        """The row as it is committed."""

    def begin(self, step: Step) -> None:
        """Begin a write transaction for this step. Raises Fenced, or RuntimeError for a connection that is inside
        one already."""

    def commit(self) -> None:
        """Commit what was done since `begin`, and the step with it. Raises Fenced, or RuntimeError if the
        transaction was ended by somebody else."""

    def rollback(self) -> None:
        """Undo what was done since `begin`; harmless where nothing was begun or the transaction is gone."""

    def weakness(self) -> str:
        """Why a commit may be undone by a power failure; empty if it can't be."""


def quoted(table: str) -> str:
    """The table's name as SQL wants it, with its schema if there is one.

    >>> quoted("app.inbox")
    '"app"."inbox"'
    """
    if not _NAME.fullmatch(table):
        raise errors.SettingInvalid(f"an inbox's table is NAME or SCHEMA.NAME in ASCII letters, not {table!r}")
    return ".".join(f'"{part}"' for part in table.split("."))


def fenced(key: Key) -> errors.SubscriptionFenced:
    return errors.SubscriptionFenced(
        f"another consumer took over '{key.subscriber}' on '{key.topic}' in the database; nothing was stored"
    )


def _refuse_row(key: Key, found: Row, epoch: int) -> None:
    """Raises VersionUnsupported, Fenced."""
    if found.version > ROW_VERSION:
        raise errors.VersionUnsupported(f"the inbox's row has version {found.version}; upgrade OnceMQ")
    # The same epoch is our own: an opening whose commit was not answered.
    if found.epoch > epoch:
        raise fenced(key)


def moved(key: Key, found: Row, epoch: int, acked: int) -> Row:
    """The row after a seek, wherever it was before. Raises VersionUnsupported, Fenced."""
    _refuse_row(key, found, epoch)
    return Row(found.version, epoch, acked)


def taken_over(key: Key, found: Row, epoch: int, acked: int, skip_to: int) -> Row:
    """The row as its new owner has it. Raises VersionUnsupported, Fenced, InboxRewound."""
    _refuse_row(key, found, epoch)
    position = max(found.position, skip_to)
    if position < acked:
        raise errors.InboxRewound(
            f"the database has done what lies below {found.position}, but '{key.subscriber}' on '{key.topic}' was"
            f" acked up to {acked}: the database was set back, or the subscription was used without it. Messages"
            f" {found.position} to {acked - 1} would be missing"
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
    """The database behind a connection. Raises TypeError, MissingExtra, SettingInvalid."""
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
