"""Failures of PostgreSQL: they are final for the journal, and no group is written in part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from oncemq.journal.contract import Group
from oncemq.journal.postgres import background
from oncemq.journal.postgres.connection import check_settings
from oncemq.journal.postgres.journal import PostgresJournal
from oncemq.journal.postgres.standby import PostgresStandby, open_postgres
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import errors
from oncemq.testing.postgres import PostgresServer
from tests.journal.postgres_proxy import Loss, Proxy
from tests.journal.rig import SEGMENT_BYTES, begin, crash, events_of, snapshot, write

Database = psycopg.Connection[tuple[Any, ...]]

GOOD = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "server_encoding": "UTF8",
    "server_version_num": "130004",
    "is_replica": "false",
}


@pytest.fixture
def database(postgres: str) -> Iterator[Database]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        yield connection


def open_loaded(dsn: str) -> PostgresJournal:
    journal = open_postgres(dsn, lease_ms=60_000, extent_bytes=SEGMENT_BYTES, worker=InlineWorker())
    list(journal.load().groups)
    return journal


def reopened(dsn: str) -> tuple[PostgresJournal, list[bytes]]:
    """Open the journal after the lease of the former holder is over."""
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute("update oncemq.journal_lease set expires_at = 'epoch'")
    journal = open_postgres(dsn, lease_ms=60_000, worker=InlineWorker())
    return journal, events_of(list(journal.load().groups))


def check_that_it_is_finished(journal: PostgresJournal) -> None:
    attempts = (
        lambda: journal.next_slot(10),
        lambda: journal.append(Group(1, b"late", ())),
        journal.sync,
        journal.ensure_not_fenced,
        journal.maintain,
        journal.confirm,
        journal.begin_snapshot,
        lambda: journal.release({}),
    )
    for attempt in attempts:
        with pytest.raises(errors.JournalFailed):
            attempt()
    journal.close()


def test_a_killed_server_is_final_and_leaves_nothing_half_written() -> None:
    with PostgresServer() as server:
        if not server.is_own:
            pytest.skip("the server is not ours to kill")
        with server.database() as dsn:
            journal = open_loaded(dsn)
            kept = write(journal, [b"kept" * 1000], b"kept")
            begin(journal, [b"lost" * 1000], b"lost")
            server.kill()
            with pytest.raises(errors.JournalFailed):
                journal.sync()
            with pytest.raises(errors.JournalFailed):
                open_postgres(dsn)
            server.start()
            check_that_it_is_finished(journal)
            again, events = reopened(dsn)
            assert events == [b"kept"]
            assert again.read(kept)[0][0] == b"kept" * 1000
            again.close()


@pytest.mark.parametrize("loses", ["request", "answer"])
def test_a_commit_without_an_answer_is_final_though_it_may_have_happened(postgres: str, loses: Loss) -> None:
    proxy = Proxy(postgres)
    try:
        journal = open_loaded(proxy.dsn)
        write(journal, events=b"sure")
        begin(journal, [b"in doubt"], b"in doubt")
        proxy.loses = loses
        with pytest.raises(errors.JournalFailed):
            journal.sync()
        proxy.loses = "nothing"
        check_that_it_is_finished(journal)
        _, events = reopened(postgres)
        assert events == ([b"sure"] if loses == "request" else [b"sure", b"in doubt"])
    finally:
        proxy.close()


def test_an_ended_connection_is_final(postgres: str, database: Database) -> None:
    journal = open_loaded(postgres)
    write(journal, events=b"sure")
    database.execute("select pg_terminate_backend(backend_pid, 10000) from oncemq.journal_lease")
    begin(journal, events=b"lost")
    with pytest.raises(errors.JournalFailed, match="a commit failed") as caught:
        journal.sync()
    assert not isinstance(caught.value, errors.JournalFenced)
    check_that_it_is_finished(journal)
    assert reopened(postgres)[1] == [b"sure"]


def test_a_group_that_does_not_follow_the_last_one_is_not_written(postgres: str, database: Database) -> None:
    journal = open_loaded(postgres)
    write(journal, events=b"one")
    database.execute("update oncemq.journal_lease set last_sequence = 7")
    with pytest.raises(errors.JournalFenced):
        write(journal, [b"payload"], b"two")
    assert database.execute("select count(*) from oncemq.journal_group").fetchone() == (1,)
    assert database.execute("select count(*) from oncemq.journal_record").fetchone() == (0,)


def test_a_damaged_payload_is_detected(postgres: str, database: Database) -> None:
    journal = open_loaded(postgres)
    good, bad = write(journal, [b"good" * 1000, b"flip" * 1000])
    database.execute(
        "update oncemq.journal_record set payload = set_byte(payload, 3999, 1) where position = %s", (bad.position,)
    )
    assert journal.read([good])[0][0] == b"good" * 1000
    with pytest.raises(errors.RecordCorrupt, match="checksum") as refused:
        journal.read([bad])
    assert "oncemq journal" not in refused.value.text
    journal.ensure_not_fenced()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("update oncemq.journal_group set events = 'other' where sequence = 2", "group 2 does not match"),
        ("update oncemq.journal_group set time_ms = 3 where sequence = 2", "group 2 does not match"),
        ("delete from oncemq.journal_group where sequence = 2", "group 2 is missing"),
        ("delete from oncemq.journal_group where sequence >= 2", "group 2 is missing"),
    ],
)
def test_a_damaged_group_is_refused_and_the_lease_released(
    postgres: str, database: Database, damage: str, said: str
) -> None:
    journal = open_loaded(postgres)
    for number in range(3):
        write(journal, events=b"%d" % number)
    crash(journal)
    database.execute(damage.encode())
    for _ in range(2):
        with pytest.raises(errors.JournalCorrupt, match=said) as refused:
            list(open_postgres(postgres).load().groups)
        assert "backup" in refused.value.advice
        assert "oncemq journal" not in refused.value.advice


def test_instead_of_a_damaged_snapshot_the_previous_one_is_used(postgres: str, database: Database) -> None:
    journal = open_loaded(postgres)
    write(journal, events=b"one")
    snapshot(journal, [b"first"])
    write(journal, events=b"two")
    snapshot(journal, [b"second", b"chunk"])
    crash(journal)
    database.execute("update oncemq.journal_chunk set chunk = 'chunX' where chunk = 'chunk'")
    again = open_postgres(postgres)
    loaded = again.load()
    assert loaded.snapshot == [b"first"]
    assert events_of(list(loaded.groups)) == [b"two"]
    assert "snapshot 2 is damaged" in again.warnings[0]
    again.close()


def test_a_damaged_snapshot_is_replaced_by_one_of_the_same_group(postgres: str, database: Database) -> None:
    journal = open_loaded(postgres)
    for number in range(2):
        write(journal, events=b"%d" % number)
        snapshot(journal)
    crash(journal)
    database.execute("update oncemq.journal_chunk set chunk = 'X' where sequence = 2")
    again = open_loaded(postgres)
    snapshot(again, [b"mended"])
    crash(again)
    third = open_postgres(postgres)
    assert (third.load().snapshot, third.warnings) == ([b"mended"], [])
    assert database.execute("select sequence from oncemq.journal_snapshot order by 1").fetchall() == [(1,), (2,)]
    third.close()


def end_background(database: Database) -> None:
    [(is_ended,)] = database.execute(
        """select pg_terminate_backend(pid, 10000) from pg_stat_activity
        where application_name = 'oncemq background' and datname = current_database()"""
    ).fetchall()
    assert is_ended


def test_background_work_that_fails_is_tried_again(
    postgres: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_loaded(postgres)
    for number in range(4):
        write(journal, [b"L" * 20_000], b"%d" % number)
    snapshot(journal)
    end_background(database)
    replay_bytes = journal.replay_bytes
    write(journal)
    snapshot(journal)
    assert journal.replay_bytes > replay_bytes
    assert journal.begin_snapshot() is None
    monkeypatch.setattr(background.RetryPause, "is_over", True)
    snapshot(journal)
    assert journal.replay_bytes == 0
    before = journal.extents()
    end_background(database)
    for _ in range(2):
        journal.release({})
        journal.maintain()
        after = journal.extents()
    write(journal, events=b"it goes on")
    monkeypatch.undo()
    assert len(before) > len(after) == 1
    [(groups,)] = database.execute("select min(sequence) from oncemq.journal_group").fetchall()
    assert groups > 1


def test_timeouts_for_other_sessions_do_not_apply(postgres: str, database: Database) -> None:
    [(name,)] = database.execute("select current_database()").fetchall()
    limits = ("idle_session_timeout", "statement_timeout", "transaction_timeout")
    known = database.execute("select name from pg_settings where name = any(%s)", (list(limits),)).fetchall()
    for (limit,) in known:
        database.execute(f'alter database "{name}" set {limit} = 9000')
    try:
        journal = open_loaded(postgres)
        for connection in (journal._connection, journal._background.connection()):
            found = [connection.execute(f"show {limit}".encode()).fetchone() for (limit,) in known]
            assert found == [("0",)] * len(known)
        journal.close()
    finally:
        for (limit,) in known:
            database.execute(f'alter database "{name}" reset {limit}')


def test_a_missing_database_is_a_wrong_setting_at_first_and_awaited_later(postgres: str) -> None:
    nowhere = psycopg.conninfo.make_conninfo(postgres, dbname="nowhere")
    with PostgresStandby(nowhere) as standby, pytest.raises(errors.SettingInvalid, match="does not exist") as missing:
        standby.try_take_over()
    assert "createdb nowhere" in missing.value.advice
    with PostgresStandby(postgres) as standby:
        journal = standby.try_take_over()
        assert journal is not None
        journal.close()
        standby._url = nowhere
        with pytest.raises(errors.JournalFailed, match="does not exist"):
            standby.try_take_over()


@pytest.mark.parametrize("name", ["fsync", "full_page_writes"])
def test_a_server_that_may_lose_commits_is_refused(name: str) -> None:
    check_settings(GOOD, "here")
    with pytest.raises(errors.SettingInvalid, match=f"Set {name} = on"):
        check_settings({**GOOD, name: "off"}, "here")


def test_other_unsuitable_servers_are_refused() -> None:
    with pytest.raises(errors.SettingInvalid, match="is PostgreSQL 12; the journal needs 13"):
        check_settings({**GOOD, "server_version_num": "120022"}, "here")
    with pytest.raises(errors.SettingInvalid, match="SQL_ASCII"):
        check_settings({**GOOD, "server_encoding": "SQL_ASCII"}, "here")
    with pytest.raises(errors.JournalFailed, match="replica"):
        check_settings({**GOOD, "is_replica": "true"}, "here")


def test_the_settings_that_are_checked_are_those_of_the_server(postgres: str, database: Database) -> None:
    journal = open_loaded(postgres)
    assert journal.warnings == []
    journal.close()
    [(name,)] = database.execute("select current_database()").fetchall()
    database.execute(f'alter database "{name}" set synchronous_commit = off')
    try:
        again = open_loaded(postgres)
        assert "synchronous_commit is off" in again.warnings[0]
        assert again._connection.execute("show synchronous_commit").fetchone() == ("on",)
        again.close()
    finally:
        database.execute(f'alter database "{name}" reset synchronous_commit')


def test_newer_formats_are_refused_by_name(postgres: str, database: Database) -> None:
    open_loaded(postgres).close()
    for column in ("schema_version", "journal_version"):
        database.execute(f"update oncemq.journal_meta set {column} = {column} + 100")
        with pytest.raises(errors.JournalVersion, match="version"):
            open_postgres(postgres)
        database.execute(f"update oncemq.journal_meta set {column} = {column} - 100")
    open_loaded(postgres).close()


def test_a_foreign_schema_is_not_touched(postgres: str, database: Database) -> None:
    database.execute("create schema oncemq")
    with pytest.raises(errors.SettingInvalid, match="not OnceMQ's"):
        open_postgres(postgres)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgresql://me:sesame@127.0.0.1:1/db", errors.JournalFailed),
        ("postgresql://me:sesame@127.0.0.1:port/db", errors.SettingInvalid),
        ("postgresql://me:open@sesame@127.0.0.1/db", errors.SettingInvalid),
        ("postgresql://me:1/sesame@127.0.0.1/db", errors.SettingInvalid),
        ("postgresql://me:sesame@[::1/db", errors.SettingInvalid),
        ("postgresql://me:sesame@127.0.0.1/db?nonsense=1", errors.SettingInvalid),
    ],
)
def test_a_password_is_never_shown(url: str, kind: type[errors.OnceMQError]) -> None:
    with pytest.raises(kind) as caught:
        open_postgres(url)
    assert "sesame" not in str(caught.value)


def test_a_description_has_everything_but_the_password(postgres: str) -> None:
    journal = open_loaded(postgres + " password=sesame")
    assert journal.describe().startswith("postgresql://")
    assert "/test_" in journal.describe()
    assert "sesame" not in journal.describe()
    journal.close()
