"""One writer at a time: leases, terms, take-overs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from oncemq.journal.contract import Group
from oncemq.journal.postgres import journal as postgres_journal
from oncemq.journal.postgres import writer as postgres_writing
from oncemq.journal.postgres.journal import PostgresJournal
from oncemq.journal.postgres.lease import now_s
from oncemq.journal.postgres.standby import PostgresStandby, open_postgres
from oncemq.journal.rows import Rows, TopicRow
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import errors
from tests.acceptance.processes import wait_until
from tests.journal.rig import SEGMENT_BYTES, begin, crash, events_of, write

LONG_MS = 60_000

Database = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def database(postgres: str) -> Iterator[Database]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        yield connection


def take_over(dsn: str, lease_ms: int = LONG_MS) -> PostgresJournal:
    journal = open_postgres(
        dsn, lease_ms=lease_ms, extent_bytes=SEGMENT_BYTES, address="tcp://here:5555", worker=InlineWorker()
    )
    list(journal.load().groups)
    return journal


def end_lease(database: Database, *, forget_backend: bool = True) -> None:
    """End the lease in the database. With `forget_backend`, the connection of its holder is not ended."""
    database.execute("update oncemq.journal_lease set expires_at = 'epoch'")
    if forget_backend:
        database.execute("update oncemq.journal_lease set backend_pid = 0")


def oversleep(journal: PostgresJournal) -> None:
    """Simulate that the process was suspended for a long time."""
    journal._lease.renewed(now_s() - 10 * LONG_MS / 1000)


def expires_at(database: Database) -> str:
    [(found,)] = database.execute("select expires_at::text from oncemq.journal_lease").fetchall()
    return str(found)


def test_a_held_journal_is_refused_and_the_refusal_says_who_holds_it(postgres: str) -> None:
    journal = take_over(postgres)
    with pytest.raises(errors.JournalLocked, match=r"held by the broker on .*, process \d+ at tcp://here:5555 since"):
        open_postgres(postgres)
    write(journal, events=b"it goes on")
    journal.ensure_not_fenced()


def test_a_clean_close_releases_the_lease_immediately(postgres: str) -> None:
    first = take_over(postgres)
    write(first, events=b"last")
    first.close()
    first.close()
    second = open_postgres(postgres)
    assert second.term == first.term + 1
    assert events_of(list(second.load().groups)) == [b"last"]
    second.close()


@pytest.mark.parametrize("is_connection_ended", [False, True])
def test_an_older_term_writes_nothing(postgres: str, database: Database, is_connection_ended: bool) -> None:
    first = take_over(postgres)
    write(first, events=b"before")
    begin(first, events=b"too late")
    end_lease(database, forget_backend=not is_connection_ended)
    second = take_over(postgres)
    # The last group is still the one that it knows: only the term prevents the append.
    with pytest.raises(errors.JournalFenced):
        first.sync()
    write(second, events=b"behind")
    for attempt in (
        first.sync,
        first.ensure_not_fenced,
        first.maintain,
        lambda: first.next_slot(1),
        lambda: first.release({}),
    ):
        with pytest.raises(errors.JournalFenced):
            attempt()
    first.close()
    crash(second)
    assert events_of(list(take_over(postgres).load().groups)) == [b"before", b"behind"]


def test_a_suspended_broker_continues_if_no_other_took_over(postgres: str, database: Database) -> None:
    journal = take_over(postgres)
    end_lease(database)
    oversleep(journal)
    before = expires_at(database)
    journal.ensure_not_fenced()
    assert expires_at(database) > before
    assert journal._lease.is_held
    write(journal, events=b"still here")


def test_a_suspended_broker_answers_nothing_if_another_took_over(postgres: str, database: Database) -> None:
    first = take_over(postgres)
    wanted = write(first, [b"read before it slept"])
    first.read(wanted)
    end_lease(database)
    take_over(postgres)
    first.ensure_not_fenced()  # Its own clock says that the lease is not over.
    oversleep(first)
    with pytest.raises(errors.JournalFenced):
        first.ensure_not_fenced()


def test_an_append_renews_the_lease(postgres: str, database: Database) -> None:
    journal = take_over(postgres)
    before = expires_at(database)
    write(journal)
    assert expires_at(database) > before


def test_maintenance_renews_the_lease_when_a_third_of_it_is_over(postgres: str, database: Database) -> None:
    journal = take_over(postgres)
    before = expires_at(database)
    journal.maintain()
    assert expires_at(database) == before
    journal._lease.renewed(now_s() - 0.4 * LONG_MS / 1000)
    journal.maintain()
    assert expires_at(database) > before
    assert not journal._lease.is_due


def test_the_lease_is_renewed_during_a_long_recovery(postgres: str, database: Database) -> None:
    journal = take_over(postgres)
    write(journal)
    crash(journal)
    again = open_postgres(postgres, lease_ms=300)
    groups = again.load().groups
    before = expires_at(database)
    next(groups)
    wait_until(lambda: expires_at(database) > before, "the lease is renewed")
    list(groups)
    assert again._renewer is None
    again.close()


def test_of_many_standbys_one_takes_over(postgres: str, database: Database) -> None:
    term = take_over(postgres).term
    standbys = [PostgresStandby(postgres, lease_ms=LONG_MS, worker=InlineWorker()) for _ in range(6)]
    assert [standby.try_take_over() for standby in standbys] == [None] * 6
    assert "tcp://here:5555" in standbys[0].holder
    end_lease(database)
    found: list[PostgresJournal | None] = []
    start = threading.Barrier(6)

    def race(standby: PostgresStandby) -> None:
        start.wait()
        found.append(standby.try_take_over())

    threads = [threading.Thread(target=race, args=(standby,)) for standby in standbys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [winner] = [journal for journal in found if journal is not None]
    assert winner.term == term + 1
    list(winner.load().groups)
    write(winner)
    for standby in standbys:
        standby.close()
    winner.close()


def test_of_many_that_start_on_an_empty_database_one_takes_over(postgres: str) -> None:
    found: list[PostgresJournal | Exception] = []
    start = threading.Barrier(4)

    def race() -> None:
        start.wait()
        try:
            found.append(open_postgres(postgres, worker=InlineWorker()))
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(one, PostgresJournal) for one in found) == 1, found
    assert sum(isinstance(one, errors.JournalLocked) for one in found) == 3, found


def test_a_broker_suspended_in_a_transaction_does_not_lock_out_its_successor(postgres: str, database: Database) -> None:
    first = take_over(postgres)
    end_lease(database, forget_backend=False)
    first._connection.execute("begin")
    first._connection.execute("select oncemq.keep_term(%s, 0, 1, 100000, 60000)", (first.term,))
    # It waits for a lock no longer than its own lease, and the other one may hold it for a minute.
    second = take_over(postgres, lease_ms=10_000)
    assert second.term == first.term + 1
    with pytest.raises(errors.JournalFenced):
        write(first)


def test_background_work_of_an_older_term_has_no_effect(postgres: str, database: Database) -> None:
    first = take_over(postgres)
    write(first)
    writer = first.begin_snapshot()
    assert writer is not None
    end_lease(database)
    second = take_over(postgres)
    writer.add(b"state")
    writer.finish()
    with pytest.raises(errors.JournalFenced):
        first.maintain()
    crash(second)
    assert open_postgres(postgres).load().snapshot is None


def left_s(database: Database) -> float:
    [(left,)] = database.execute(
        "select extract(epoch from expires_at - clock_timestamp())::float8 from oncemq.journal_lease"
    ).fetchall()
    return float(left)


def append_rows(journal: PostgresJournal, *ids: int) -> None:
    journal.next_slot(10)
    journal.append(Group(1, b"heavy", (), Rows(topics=tuple(TopicRow(id_, f"topic {id_}", 0, 0) for id_ in ids))))
    journal.sync()


def test_a_heavy_group_has_a_longer_lease_and_ends_with_an_ordinary_one(
    postgres: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[float] = []

    def append_group(*given: Any) -> None:
        found.append(left_s(database))
        postgres_writing.append_group(*given)
        found.append(left_s(database))

    journal = take_over(postgres)
    monkeypatch.setattr(postgres_journal, "append_group", append_group)
    append_rows(journal, 1)
    monkeypatch.setattr(postgres_writing, "_ROW_MS", LONG_MS)
    append_rows(journal, 1, 2, 3)
    ordinary_s = LONG_MS / 1000
    assert [left > ordinary_s for left in (*found, left_s(database))] == [False, False, True, True, False]
    assert journal._lease.is_held
    assert database.execute("select count(*) from oncemq.topic").fetchone() == (3,)


def test_a_heavy_group_that_fails_does_not_keep_its_longer_lease(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_writing, "_ROW_MS", LONG_MS)
    journal = take_over(postgres)
    with pytest.raises(errors.JournalFailed, match="second time"):
        append_rows(journal, 1, 1)
    journal.close()
    take_over(postgres).close()


def test_the_sleep_of_the_machine_counts(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform != "linux":
        pytest.skip("there is no such clock")
    journal = take_over(postgres)
    assert journal._lease.is_held
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(time, "clock_gettime", lambda _: now + LONG_MS)
    assert not journal._lease.is_held


def test_an_older_term_cannot_be_raised_to_the_current_one(postgres: str, database: Database) -> None:
    first = take_over(postgres)
    end_lease(database)
    second = take_over(postgres)
    with pytest.raises(errors.JournalFenced):
        first.raise_term(second.term)
    assert first.term < second.term
