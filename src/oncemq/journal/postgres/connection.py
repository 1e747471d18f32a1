"""Connections of the PostgreSQL journal: how they are made, what a server must be like, and what failed."""

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

Connection = psycopg.Connection[tuple[Any, ...]]

#: What our own functions raise: sql/schema.sql.
TERM_IS_OVER = "OM001"
#: The oldest version whose SQL this is.
_VERSION_MIN = 13
_STRONG_ENOUGH = ("on", "remote_apply")
_CONNECT_S = 5
_DIAGNOSIS_S = 2
_KEEPALIVES = 3
#: Of a connection that was refused, nothing but the text is to be had. In another language it is not recognised, and
#: the database is waited for.
_MISFIT = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|is not permitted to log in"
    r'|(role|database) ".*" does not exist'
)
_NO_DATABASE = re.compile(r'database "(.*)" does not exist')
_MUST_BE_ON = ("fsync", "full_page_writes")


def connect(url: str, lease_ms: int, name: str = "oncemq") -> Connection:
    """Raises JournalFailed where there is no database, SettingInvalid where the URL can't be read or does not fit the
    server."""
    try:
        conninfo_to_dict(url)
    except psycopg.Error:
        # Its text would repeat the URL.
        raise _unreadable() from None
    alive_s = _alive_s(lease_ms)
    try:
        connection = psycopg.connect(
            url,
            autocommit=True,
            # From the first use on: the same few statements again and again.
            prepare_threshold=0,
            application_name=name,
            connect_timeout=_CONNECT_S,
            # Where the other side is gone without a word, both sides notice about as soon as the lease is over.
            keepalives_idle=alive_s,
            keepalives_interval=alive_s,
            keepalives_count=_KEEPALIVES,
            tcp_user_timeout=max(1000, lease_ms),
        )
        _prepare(connection, lease_ms)
    except psycopg.Error as error:
        where = describe(url)
        if where == HIDDEN:
            raise _unreadable() from None
        failure = failed(where, "a connection", error)
        # Of several hosts, another one may do later.
        if _MISFIT.search(str(error)) and "," not in where:
            raise _misfit(failure.text) from error
        raise failure from error
    return connection


def _misfit(text: str) -> errors.SettingInvalid:
    error = errors.SettingInvalid(text)
    missing = _NO_DATABASE.search(text)
    if missing:
        error.advice = f"Create it: `createdb {missing[1]}`, with the host, port and user of the URL (-h, -p, -U)."
    return error


def _unreadable() -> errors.SettingInvalid:
    return errors.SettingInvalid(
        "the journal's URL can't be read; it looks like postgresql://user@host:5432/database. "
        "In a password, @ is written %40, / is %2F, ? is %3F, : is %3A"
    )


def _alive_s(lease_ms: int) -> int:
    return max(1, lease_ms // 3000)


def _prepare(connection: Connection, lease_ms: int) -> None:
    """A broker that is stopped in the middle of a transaction, or gone, must not lock out its successor; one that is
    alive is not to be ended by what is set for other sessions."""
    register(connection)
    alive_s = str(_alive_s(lease_ms))
    settings = (str(lease_ms), str(lease_ms), alive_s, alive_s, str(_KEEPALIVES))
    connection.execute(query("prepare"), settings)


def is_term_over(url: str, term: int) -> bool:
    """Who takes over ends the connection of who was before: that is no failure of the database."""
    with (
        suppress(psycopg.Error, TypeError),
        psycopg.connect(url, connect_timeout=_DIAGNOSIS_S, autocommit=True) as connection,
    ):
        (found,) = connection.execute(query("term")).fetchone() or (0,)
        return bool(found > term)
    return False


def check_server(connection: Connection, where: str) -> list[str]:
    """Whether a COMMIT is a promise here. Raises SettingInvalid; returns warnings."""
    found: dict[str, str] = dict(connection.execute(query("settings")).fetchall())
    check_settings(found, where)
    weak = found["synchronous_commit"]
    if weak in _STRONG_ENOUGH:
        return []
    connection.execute("set synchronous_commit = on")
    return [f"{where}: synchronous_commit is {weak}; the broker's own sessions have it on"]


def check_settings(found: Mapping[str, str], where: str) -> None:
    """Raises SettingInvalid for what waiting will not mend, JournalFailed for what it may."""
    version = int(found["server_version_num"]) // 10_000
    if version < _VERSION_MIN:
        raise errors.SettingInvalid(f"{where} is PostgreSQL {version}; the journal needs {_VERSION_MIN} or later")
    if found["server_encoding"] != "UTF8":
        raise errors.SettingInvalid(
            f"{where} has the encoding {found['server_encoding']}; make the database with: encoding 'UTF8'"
        )
    for name in _MUST_BE_ON:
        if found[name] != "on":
            raise errors.SettingInvalid(
                f"{where}: {name} is {found[name]}, so that a crash of its machine may lose what was committed. "
                f"Set {name} = on in postgresql.conf, and reload."
            )
    if found["is_replica"] == "true":
        # It may be promoted.
        raise errors.JournalFailed(f"{where} is a replica, which takes no writes; connect to its primary")


def failed(where: str, what: str, error: psycopg.Error) -> errors.JournalFailed:
    """What PostgreSQL says, in one line."""
    said = " ".join(str(error).split()) or type(error).__name__
    if error.sqlstate == TERM_IS_OVER:
        return errors.JournalFenced(f"{where}: another broker has taken over this journal")
    return errors.JournalFailed(f"{where}: {what} failed: {said}")
