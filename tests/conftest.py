"""Fixtures for all tests: a broker process, and an empty PostgreSQL database."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from oncemq.broker import embedded
from oncemq.protocol.limits import Limits
from oncemq.testing.broker_process import BrokerProcess, Transport
from oncemq.testing.postgres import PostgresServer
from tests.acceptance.processes import SMALL
from tests.forking import ForkedBroker

_END_OTHERS = """select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid()"""
_SCHEMAS = "select nspname from pg_namespace where nspname !~ '^(pg_|information_schema)'"


def pytest_configure() -> None:
    """Programs that tests start inherit ignored signals. `nohup` and `&` make a shell ignore two of them."""
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def _small_files() -> Iterator[None]:
    """Brokers in the process of the tests fill smaller files with zeros at their start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "SEGMENT_BYTES", 6 * 1024 * 1024)
        patch.setattr(embedded, "LIMITS", Limits(batch_bytes_max=4 * 1024 * 1024))
        yield


@pytest.fixture(scope="session", autouse=True)
def _separate_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The state of commands is not written to the user's state folder, and the user's contexts are not used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture
def broker_process(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """A broker that is not started yet. It is killed at the end of the test. Its parameter is the transport."""
    process = ForkedBroker(tmp_path / "data", *SMALL, transport=getattr(request, "param", "stream"))
    yield process
    process.kill()


@pytest.fixture
def oncemq_broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """As the fixture of the plug-in (testing/plugin.py), with a faster start. Its parameter is the transport."""
    transport: Transport = getattr(request, "param", "stream")
    flags = ("--segment-bytes=6MiB", "--batch-bytes-max=4MiB")
    broker = ForkedBroker(tmp_path / "oncemq-data", *flags, transport=transport)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def _database(oncemq_postgres_server: PostgresServer) -> Iterator[str]:
    with oncemq_postgres_server.database() as dsn:
        yield dsn


@pytest.fixture
def postgres(_database: str) -> Iterator[str]:
    """The DSN of an empty PostgreSQL database. Emptying it is faster than creating one for each test."""
    yield _database
    with psycopg.connect(_database, autocommit=True) as connection:
        connection.execute(_END_OTHERS)
        for (name,) in connection.execute(_SCHEMAS).fetchall():
            connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(name)))
        connection.execute("create schema public")
