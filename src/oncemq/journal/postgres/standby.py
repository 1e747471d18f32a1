"""Taking over a journal in PostgreSQL: one broker holds it, the others stand by.

    connect ─► check the server ─► create the schema, if there is none ─► lease over? ─► new term ─► journal

The broker that holds the journal renews its lease. A standby that finds the lease over begins a new term, in one
transaction. From then on no append of an older term succeeds.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

from oncemq.config.database_url import describe
from oncemq.journal.postgres.sql import query, script
from oncemq.journal.worker import ThreadWorker, Worker
from oncemq.protocol import errors
from oncemq.protocol.version import JOURNAL_VERSION

try:
    import psycopg

    from oncemq.journal.postgres.connection import Connection, check_server, connect, corrupt, failed
    from oncemq.journal.postgres.journal import PostgresJournal, TakeOver
    from oncemq.journal.postgres.lease import Lease, now_s
    from oncemq.journal.postgres.writer import append_first_group
except ImportError as error:
    raise errors.MissingExtra("psycopg is not installed: pip install 'oncemq[postgres]'") from error

LEASE_MS = 3000
EXTENT_BYTES = 64 * 1024 * 1024
#: Version of the tables. The events in them have the version of the journal.
SCHEMA_VERSION = 1


def open_postgres(url: str, **options: Any) -> PostgresJournal:
    """Take over immediately, or raise JournalLocked, which says who holds the journal. The options are those of
    PostgresStandby.

    Raise JournalFailed if the database can't be reached, and SettingInvalid or JournalVersion for a permanent
    problem."""
    with PostgresStandby(url, **options) as standby:
        journal = standby.try_take_over()
        if journal is None:
            left = f"its lease ends in {standby.left_s:.1f} s, unless it is renewed"
            raise errors.JournalLocked(f"{standby.holder}; {left}")
        return journal


class PostgresStandby:
    """Tries to take over the journal when it is asked to. It keeps its connection between attempts.

    `extent_bytes` and `journal_id` apply to a new journal; an existing one keeps its own. `address` is where clients
    find this broker, for people who look at the lease. If `may_create` is False, a database without a journal is an
    error. `first_events` are the events of a first group that a new journal has from the moment it exists."""

    def __init__(
        self,
        url: str,
        *,
        lease_ms: int = LEASE_MS,
        extent_bytes: int = EXTENT_BYTES,
        address: str = "",
        journal_id: bytes | None = None,
        worker: Worker | None = None,
        may_create: bool = True,
        first_events: bytes = b"",
    ) -> None:
        self.location = describe(url)
        #: Who held the journal at the last attempt.
        self.holder = ""
        #: The address of that broker for clients.
        self.active_address = ""
        #: What was left of its lease, by the clock of the database.
        self.left_s = 0.0
        self._url = url
        self._lease_ms = lease_ms
        self._extent_bytes = extent_bytes
        self._address = address
        self._journal_id = journal_id
        self._worker = worker
        self._may_create = may_create
        self._first_events = first_events
        self._connection: Connection | None = None
        self._has_connected = False
        self._warnings: list[str] = []

    def __enter__(self) -> PostgresStandby:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def try_take_over(self) -> PostgresJournal | None:
        """Return the journal, or None if another broker holds it (see `holder`). Raise as `open_postgres`."""
        try:
            connection = self._connected()
            journal = self._take_over(connection) if self._is_free(connection) else None
        except psycopg.Error as error:
            self.close()
            raise failed(self.location, "taking over", error) from error
        except errors.OnceMQError:
            self.close()
            raise
        if journal is not None:
            # The connection belongs to the journal now.
            self._connection = None
        return journal

    # Connecting.

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
            self._warnings = check_server(self._connection, self.location)
            if self._one("has_schema") != (True,):
                if not self._may_create:
                    raise errors.JournalError(f"there is no journal in {self.location}")
                self._create_schema(self._connection)
            self._check_version()
        return self._connection

    def _connect(self) -> Connection:
        try:
            connection = connect(self._url, self._lease_ms)
        except errors.SettingInvalid as error:
            if self._has_connected:
                # The URL was accepted before, so the problem may go away.
                raise errors.JournalFailed(error.text) from error
            raise
        self._has_connected = True
        return connection

    def _one(self, name: str) -> tuple[Any, ...] | None:
        assert self._connection is not None
        return self._connection.execute(query(name)).fetchone()

    def _create_schema(self, connection: Connection) -> None:
        try:
            with connection.transaction():
                # If two brokers start at the same time, one of them creates it.
                connection.execute(query("lock_schema"))
                if self._one("has_schema") == (True,):
                    return
                connection.execute(script("schema"), prepare=False)
                connection.execute(script("tables"), prepare=False)
                journal_id = self._journal_id or os.urandom(16)
                meta = (SCHEMA_VERSION, JOURNAL_VERSION, journal_id, self._extent_bytes)
                connection.execute(query("create_meta"), meta)
                connection.execute(query("create_lease"), (self._extent_bytes,))
                if self._first_events:
                    append_first_group(connection, journal_id, self._extent_bytes, self._first_events)
            connection.check_replicated()
        except psycopg.errors.InsufficientPrivilege as error:
            raise errors.SettingInvalid(
                f"{self.location}: the journal's schema can't be created: {error.diag.message_primary}. "
                "Grant CREATE on the database to the role of the broker"
            ) from error
        except psycopg.errors.DuplicateSchema as error:
            raise errors.SettingInvalid(
                f"{self.location} has a schema 'oncemq' that is not OnceMQ's; use another database"
            ) from error

    def _check_version(self) -> None:
        meta = self._one("meta")
        if meta is None:
            raise corrupt(self.location, "oncemq.journal_meta is empty")
        schema_version, journal_version = meta[:2]
        if schema_version > SCHEMA_VERSION or journal_version > JOURNAL_VERSION:
            raise errors.JournalVersion(
                f"{self.location} has tables of version {schema_version} and events of version {journal_version}; "
                f"this OnceMQ reads versions up to {SCHEMA_VERSION} and {JOURNAL_VERSION}. Upgrade OnceMQ."
            )

    # Taking over.

    def _is_free(self, connection: Connection) -> bool:
        row = connection.execute(query("lease")).fetchone()
        if row is None:
            raise corrupt(self.location, "oncemq.journal_lease is empty")
        term, holder, address, since, self.left_s = row
        if self.left_s <= 0:
            return True
        at = f" at {address}" if address else ""
        self.holder = f"{self.location} is held by {holder}{at} since {since} (term {term})"
        self.active_address = str(address or "")
        return False

    def _take_over(self, connection: Connection) -> PostgresJournal | None:
        self._end_former_holder(connection)
        sent_s = now_s()
        try:
            with connection.transaction():
                # If two standbys come here at the same time, the second one waits, and then finds no row.
                if connection.execute(query("lock_lease")).fetchone() is None:
                    self._is_free(connection)
                    return None
                taking = (_holder(), self._address, self._lease_ms)
                taken = connection.execute(query("take_over"), taking).fetchone()
                assert taken is not None
                connection.execute(query("raise_version"), (JOURNAL_VERSION, JOURNAL_VERSION))
            # Then everything before is replicated, too: also a group whose COMMIT was in doubt.
            connection.check_replicated()
        except psycopg.errors.LockNotAvailable:
            self.holder = f"{self.location} is locked by a broker whose lease is over"
            return None
        term, last_sequence, last_position = taken
        return self._journal(connection, Lease(term, self._lease_ms, sent_s), last_sequence, last_position)

    def _end_former_holder(self, connection: Connection) -> None:
        """End the connection of the former holder, which may be suspended in a transaction that locks the lease."""
        # The connection of another role can't be ended from here; its own timeout ends it.
        with suppress(psycopg.errors.InsufficientPrivilege):
            connection.execute(query("end_former_holder"))

    def _journal(self, connection: Connection, lease: Lease, sequence: int, position: int) -> PostgresJournal:
        meta = self._one("meta")
        assert meta is not None
        _, _, journal_id, extent_bytes, are_tables_current = meta
        taken = TakeOver(
            self._url, self.location, bytes(journal_id), extent_bytes, are_tables_current, sequence, position
        )
        return PostgresJournal(connection, lease, taken, self._worker or ThreadWorker(), list(self._warnings))


def _holder() -> str:
    return f"the broker on {socket.gethostname()}, process {os.getpid()}"
