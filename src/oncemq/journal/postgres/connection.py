"""Connections of the PostgreSQL journal: how they are opened, what the server must be like, and how failures are
reported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from oncemq.config.database_url import HIDDEN, describe
from oncemq.journal.postgres.arrays import register
from oncemq.journal.postgres.sql import query
from oncemq.protocol import errors

#: The SQLSTATE that our own functions raise (sql/schema.sql).
TERM_IS_OVER = "OM001"
#: The oldest version that has the SQL used here.
_VERSION_MIN = 13
_STRONG_ENOUGH = ("on", "remote_apply")
_CONNECT_S = 5
_DIAGNOSIS_S = 2
_KEEPALIVES = 3
#: A refused connection has no SQLSTATE, only a text. In another language the text is not recognised, and the broker
#: waits for the database.
_PERMANENT = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|is not permitted to log in"
    r'|(role|database) ".*" does not exist'
)
_NO_DATABASE = re.compile(r'database "(.*)" does not exist')
_MUST_BE_ON = ("fsync", "full_page_writes")
#: SQLSTATEs of the warning that a COMMIT has stopped to wait for a synchronous standby: because of `pg_cancel_backend`,
#: and because of a shutdown.
_WAIT_CANCELLED = ("01000", "57P01")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that knows whether its transactions have reached the synchronous standbys.

    If the wait for a standby is cancelled, the COMMIT succeeds with a warning. The transaction is visible, and is lost
    if the standby replaces the server."""

    _warning = ""

    def note(self, notice: psycopg.errors.Diagnostic) -> None:
        """Process a notice of the server."""
        if notice.severity_nonlocalized == "WARNING" and notice.sqlstate in _WAIT_CANCELLED:
            self._warning = notice.message_primary or "a warning"

    @property
    def is_in_doubt(self) -> bool:
        """Whether a transaction may not have reached the standbys. This is final."""
        return bool(self._warning)

    def check_replicated(self) -> None:
        """Call this after a transaction on which anything depends. Raises psycopg.OperationalError."""
        if self._warning:
            raise psycopg.OperationalError(f"a transaction may not have reached the standby: {self._warning}")


def connect(url: str, lease_ms: int, name: str = "oncemq") -> Connection:
    """Open a connection. Raise JournalFailed if the database can't be reached, and SettingInvalid if the URL can't be
    parsed or the server refuses it permanently."""
    try:
        conninfo_to_dict(url)
    except psycopg.Error:
        # The text of the error would repeat the URL, with its password.
        raise _unreadable() from None
    alive_s = _alive_s(lease_ms)
    try:
        connection = Connection.connect(
            url,
            autocommit=True,
            # Statements are prepared at their first use, since the same few are used again and again.
            prepare_threshold=0,
            application_name=name,
            connect_timeout=_CONNECT_S,
            # If one side disappears silently, the other one notices about when the lease is over.
            keepalives_idle=alive_s,
            keepalives_interval=alive_s,
            keepalives_count=_KEEPALIVES,
            tcp_user_timeout=max(1000, lease_ms),
        )
        # What the server says during the connection is not about a transaction.
        connection.add_notice_handler(connection.note)
        _prepare(connection, lease_ms)
    except psycopg.Error as error:
        location = describe(url)
        if location == HIDDEN:
            raise _unreadable() from None
        failure = failed(location, "a connection", error)
        # If there are several hosts, another one may accept the connection later.
        if _PERMANENT.search(str(error)) and "," not in location:
            raise _refused(failure.text) from error
        raise failure from error
    return connection


def _refused(text: str) -> errors.SettingInvalid:
    error = errors.SettingInvalid(text)
    missing = _NO_DATABASE.search(text)
    if missing:
        error.advice = f"Create it: `createdb {missing[1]}`, with the host, port and user of the URL (-h, -p, -U)."
    return error


def _unreadable() -> errors.SettingInvalid:
    return errors.SettingInvalid(
        "the journal's URL can't be parsed; it must look like postgresql://user@host:5432/database. "
        "In a password, write %40 for @, %2F for /, %3F for ?, and %3A for :"
    )


def _alive_s(lease_ms: int) -> int:
    return max(1, lease_ms // 3000)


def _prepare(connection: Connection, lease_ms: int) -> None:
    """Set timeouts. A broker that is suspended in a transaction, or gone, must not lock out its successor. A broker
    that is alive must not be disconnected by timeouts that are meant for other sessions."""
    register(connection)
    alive_s = str(_alive_s(lease_ms))
    settings = (str(lease_ms), str(lease_ms), alive_s, alive_s, str(_KEEPALIVES))
    connection.execute(query("prepare"), settings)


def is_term_over(url: str, term: int) -> bool:
    """Return whether another broker has begun a later term. A take-over ends the connection of the former broker, and
    that is not a failure of the database."""
    with (
        suppress(psycopg.Error, TypeError),
        psycopg.connect(url, connect_timeout=_DIAGNOSIS_S, autocommit=True) as connection,
    ):
        (found,) = connection.execute(query("term")).fetchone() or (0,)
        return bool(found > term)
    return False


def check_server(connection: Connection, location: str) -> list[str]:
    """Check that a COMMIT is durable on this server. Raise as `check_settings`; return warnings."""
    found: dict[str, str] = dict(connection.execute(query("settings")).fetchall())
    check_settings(found, location)
    weak = found["synchronous_commit"]
    if weak in _STRONG_ENOUGH:
        return []
    connection.execute("set synchronous_commit = on")
    return [f"{location}: synchronous_commit is {weak}; the broker's own sessions set it to on"]


def check_settings(found: Mapping[str, str], location: str) -> None:
    """Raise SettingInvalid for a permanent problem, and JournalFailed for one that may go away."""
    version = int(found["server_version_num"]) // 10_000
    if version < _VERSION_MIN:
        raise errors.SettingInvalid(f"{location} is PostgreSQL {version}; the journal needs {_VERSION_MIN} or later")
    if found["server_encoding"] != "UTF8":
        raise errors.SettingInvalid(
            f"{location} has the encoding {found['server_encoding']}; create the database with: encoding 'UTF8'"
        )
    for name in _MUST_BE_ON:
        if found[name] != "on":
            raise errors.SettingInvalid(
                f"{location}: {name} is {found[name]}, so a crash of its machine may lose committed data. "
                f"Set {name} = on in postgresql.conf, and reload."
            )
    if found["is_replica"] == "true":
        # The replica may be promoted later.
        raise errors.JournalFailed(f"{location} is a replica, which accepts no writes; connect to its primary")


def failed(location: str, what: str, error: psycopg.Error) -> errors.JournalFailed:
    """Return the failure with the text of PostgreSQL, in one line."""
    said = " ".join(str(error).split()) or type(error).__name__
    if error.sqlstate == TERM_IS_OVER:
        return errors.JournalFenced(f"{location}: another broker has taken over this journal")
    return errors.JournalFailed(f"{location}: {what} failed: {said}")


def corrupt(location: str, what: str) -> errors.JournalCorrupt:
    """Return the error for a damaged journal, with the advice for a database."""
    error = errors.JournalCorrupt(f"{location}: {what}")
    error.advice = errors.JournalCorrupt.database_advice
    return error
