"""A COMMIT whose wait for a synchronous standby was cancelled: the server reports success with a warning."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from oncemq.journal.postgres.journal import PostgresJournal
from oncemq.journal.postgres.standby import PostgresStandby, open_postgres
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import errors
from oncemq.testing.postgres import PostgresServer
from tests.acceptance.processes import wait_until
from tests.journal.rig import SEGMENT_BYTES, begin, crash, events_of, snapshot, write

_WAITING = "from pg_stat_activity where wait_event = 'SyncRep'"


class Server:
    """A server whose only synchronous standby can be missing."""

    def __init__(self, server: PostgresServer, dsn: str) -> None:
        self.dsn = dsn
        self._admin: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(server.dsn, autocommit=True)
        self._admin.execute("set synchronous_commit = local")

    def lose_standby(self, *, is_missing: bool) -> None:
        self._admin.execute(f"alter system set synchronous_standby_names = '{'missing' if is_missing else ''}'")
        self._admin.execute("select pg_reload_conf()")
        names = "missing" if is_missing else ""
        wait_until(lambda: self._one("show synchronous_standby_names") == names, "the setting is known")
        if is_missing:
            # It is in force when the server's checkpointer has read it, too.
            wait_until(self._does_commit_wait, "a commit waits for the standby")

    def _does_commit_wait(self) -> bool:
        with psycopg.connect(self.dsn, autocommit=True) as database:
            probe = threading.Thread(target=database.execute, args=("select pg_logical_emit_message(true, '', '')",))
            probe.start()
            wait_until(lambda: self._waiting() > 0 or not probe.is_alive(), "the commit waits or has ended")
            is_waiting = probe.is_alive()
            self._cancel_waiting()
            probe.join()
            return is_waiting

    def cancel_wait(self) -> None:
        """Cancel the wait of the session that waits for the standby."""
        wait_until(lambda: self._waiting() > 0, "the session waits")
        self._cancel_waiting()

    def _waiting(self) -> int:
        return int(self._one(f"select count(*) {_WAITING}"))

    def _cancel_waiting(self) -> None:
        wait_until(lambda: self._one(f"select count(pg_cancel_backend(pid)) {_WAITING}") == 0, "its wait has ended")

    def end_lease(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as database:
            database.execute("update oncemq.journal_lease set expires_at = 'epoch'")

    def _one(self, sql: str) -> Any:
        row = self._admin.execute(sql.encode()).fetchone()
        assert row is not None
        return row[0]

    def close(self) -> None:
        self.lose_standby(is_missing=False)
        self._admin.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with PostgresServer() as running:
        if not running.is_own:
            pytest.skip("the server's settings are not ours to change")
        with running.database() as dsn:
            server = Server(running, dsn)
            yield server
            server.close()


def cancelled(server: Server, action: Callable[[], object]) -> Exception | None:
    """Run an action that commits, cancel its wait for the standby, and return what it raised."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            action()
        except Exception as error:
            raised.append(error)

    server.lose_standby(is_missing=True)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        server.cancel_wait()
    finally:
        thread.join()
        server.lose_standby(is_missing=False)
    return raised[0] if raised else None


def open_loaded(server: Server) -> PostgresJournal:
    journal = open_postgres(server.dsn, lease_ms=60_000, extent_bytes=SEGMENT_BYTES, worker=InlineWorker())
    list(journal.load().groups)
    return journal


def test_a_group_that_may_not_be_replicated_is_a_failed_sync(server: Server) -> None:
    journal = open_loaded(server)
    begin(journal, events=b"in doubt")
    error = cancelled(server, journal.sync)
    assert isinstance(error, errors.JournalFailed)
    assert "standby" in str(error)
    with pytest.raises(errors.JournalFailed):
        journal.next_slot(10)
    crash(journal)
    server.end_lease()
    again = open_postgres(server.dsn, worker=InlineWorker())
    assert events_of(list(again.load().groups))[-1] == b"in doubt"
    again.close()


@pytest.mark.parametrize("change", ["lease", "term"])
def test_a_lease_that_may_not_be_replicated_is_not_held(server: Server, change: str) -> None:
    journal = open_loaded(server)
    journal._lease.lose()
    action = journal.ensure_not_fenced if change == "lease" else lambda: journal.raise_term(journal.term + 1)
    assert isinstance(cancelled(server, action), errors.JournalFailed)
    assert not journal._lease.is_held
    crash(journal)
    server.end_lease()


def test_a_take_over_that_may_not_be_replicated_does_not_count(server: Server) -> None:
    open_loaded(server).close()
    with PostgresStandby(server.dsn, lease_ms=60_000, worker=InlineWorker()) as standby:
        assert isinstance(cancelled(server, standby.try_take_over), errors.JournalFailed)
        server.end_lease()
        journal = standby.try_take_over()
        assert journal is not None
        list(journal.load().groups)
        journal.close()


def test_a_snapshot_that_may_not_be_replicated_is_written_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_loaded(server)
    write(journal, events=b"one")
    replay_bytes = journal.replay_bytes
    assert cancelled(server, lambda: snapshot(journal)) is None
    assert journal.replay_bytes >= replay_bytes > 0
    monkeypatch.setattr("oncemq.journal.postgres.background.RetryPause.is_over", True)
    snapshot(journal)
    assert journal.replay_bytes == 0
    journal.close()
