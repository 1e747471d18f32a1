"""What is PostgreSQL's own about an inbox: modes of a connection, isolation, lost connections, rights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

import oncemq
from oncemq.client.inbox.inbox import Inbox
from oncemq.protocol import errors


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[oncemq.Client]:
    made = oncemq.connect(f"memory:{request.node.name}")
    made.subscribe("t", "s")
    made.put_many("t", ["a", "b", "c"])
    yield made
    made._close(clean=False)


@pytest.fixture
def admin(postgres: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create table effects (number serial, text text)")
        yield connection


def open_inbox(client: oncemq.Client, connection: Any, **options: Any) -> Inbox:
    return Inbox(client.subscription("t", "s", auto_ack=False), connection, **options)


def effects(admin: psycopg.Connection[Any]) -> list[str]:
    return [text for (text,) in admin.execute("select text from effects order by number")]


def store_all(inbox: Inbox, connection: psycopg.Connection[Any]) -> None:
    for message in inbox.messages(timeout_s=0):
        connection.execute("insert into effects (text) values (%s)", (message.text,))


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("isolation", [None, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_every_mode_of_a_connection_will_do(
    client: oncemq.Client,
    admin: psycopg.Connection[Any],
    postgres: str,
    autocommit: bool,
    isolation: IsolationLevel | None,
) -> None:
    with psycopg.connect(postgres, autocommit=autocommit) as connection:
        connection.isolation_level = isolation
        inbox = open_inbox(client, connection)
        with pytest.raises(ZeroDivisionError), inbox.message():
            connection.execute("insert into effects (text) values ('wrong')")
            raise ZeroDivisionError
        store_all(inbox, connection)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert connection.autocommit == autocommit
    assert effects(admin) == ["a", "b", "c"]


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("isolation", [IsolationLevel.READ_COMMITTED, IsolationLevel.SERIALIZABLE])
def test_a_consumer_that_is_overtaken_in_the_middle_of_its_work_stores_nothing(
    client: oncemq.Client, admin: psycopg.Connection[Any], postgres: str, isolation: IsolationLevel, moves: bool
) -> None:
    with psycopg.connect(postgres) as connection, psycopg.connect(postgres) as other:
        connection.isolation_level = isolation
        first, second = open_inbox(client, connection), open_inbox(client, other)
        with pytest.raises((errors.Fenced, psycopg.errors.SerializationFailure)), first.message() as message:
            assert message is not None
            connection.execute("insert into effects (text) values ('wrong')")
            # It takes over although the first one is still at it.
            second.open()
            if moves:
                store_all(second, other)
        with pytest.raises(errors.Fenced), first.message():
            pass
        store_all(second, other)
    assert effects(admin) == ["a", "b", "c"]


def test_a_serialization_failure_raises_and_the_message_comes_again(
    client: oncemq.Client, admin: psycopg.Connection[Any], postgres: str
) -> None:
    admin.execute("insert into effects (text) values ('old')")
    with psycopg.connect(postgres) as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        inbox = open_inbox(client, connection)
        with pytest.raises(psycopg.errors.SerializationFailure), inbox.message():
            connection.execute("select * from effects")
            admin.execute("update effects set text = 'changed'")
            connection.execute("update effects set text = 'wrong'")
        store_all(inbox, connection)
    assert sorted(effects(admin)) == ["a", "b", "c", "changed"]


def test_a_lost_connection_raises_and_the_next_inbox_continues(
    client: oncemq.Client, admin: psycopg.Connection[Any], postgres: str
) -> None:
    connection = psycopg.connect(postgres)
    inbox = open_inbox(client, connection)
    with inbox.message():
        connection.execute("insert into effects (text) values ('a')")
    with pytest.raises(psycopg.OperationalError), inbox.message():
        connection.execute("insert into effects (text) values ('wrong')")
        admin.execute("select pg_terminate_backend(%s)", (connection.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError), inbox.message():
        pass
    inbox.close()
    with psycopg.connect(postgres) as another:
        store_all(open_inbox(client, another), another)
    assert effects(admin) == ["a", "b", "c"]


def test_a_swallowed_error_is_not_taken_for_success(
    client: oncemq.Client, admin: psycopg.Connection[Any], postgres: str
) -> None:
    """PostgreSQL answers the commit of a failed transaction with a rollback, and no error."""
    with psycopg.connect(postgres) as connection:
        inbox = open_inbox(client, connection)
        with (
            pytest.raises(RuntimeError, match="swallowed"),
            inbox.message(),
            pytest.raises(psycopg.errors.UndefinedTable),
        ):
            connection.execute("select * from nowhere")
        with inbox.message() as message:
            assert message is not None
            assert message.text == "a"


def test_a_nested_transaction_lets_a_part_fail(
    client: oncemq.Client, admin: psycopg.Connection[Any], postgres: str
) -> None:
    with psycopg.connect(postgres) as connection:
        inbox = open_inbox(client, connection)
        with inbox.message():
            with pytest.raises(psycopg.errors.UndefinedTable), connection.transaction():
                connection.execute("select * from nowhere")
            connection.execute("insert into effects (text) values ('a failed')")
        store_all(inbox, connection)
    assert effects(admin) == ["a failed", "b", "c"]


def test_commit_by_the_connection_is_refused_by_psycopg(
    client: oncemq.Client, admin: psycopg.Connection[Any], postgres: str
) -> None:
    with psycopg.connect(postgres) as connection:
        inbox = open_inbox(client, connection)
        with pytest.raises(psycopg.ProgrammingError, match="forbidden"), inbox.message():
            connection.commit()
        store_all(inbox, connection)
    assert effects(admin) == ["a", "b", "c"]


def test_a_commit_inside_moves_nothing_where_statements_commit_by_themselves(
    client: oncemq.Client, admin: psycopg.Connection[Any], postgres: str
) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        inbox = open_inbox(client, connection)
        with pytest.raises(RuntimeError, match="ended inside"), inbox.message():
            connection.execute("COMMIT")
        assert admin.execute("select position from oncemq_inbox").fetchall() == [(0,)]


def test_a_user_that_may_not_create_tables_may_use_one_that_exists(
    client: oncemq.Client, admin: psycopg.Connection[Any], postgres: str
) -> None:
    admin.execute("create schema app")
    with psycopg.connect(postgres) as connection:
        open_inbox(client, connection, table="app.inbox").open()
    role = f"humble_{admin.info.dbname}"
    admin.execute(f"create role {role}")  # type: ignore[arg-type,unused-ignore]
    try:
        admin.execute(f"grant usage on schema app to {role}")  # type: ignore[arg-type,unused-ignore]
        admin.execute(f"grant select, insert, update on app.inbox to {role}")  # type: ignore[arg-type,unused-ignore]
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"set role {role}")  # type: ignore[arg-type,unused-ignore]
            inbox = open_inbox(client, connection, table="app.inbox")
            assert [message.text for message in inbox.messages(timeout_s=0)] == ["a", "b", "c"]
    finally:
        admin.execute(f"drop owned by {role}")  # type: ignore[arg-type,unused-ignore]
        admin.execute(f"drop role {role}")  # type: ignore[arg-type,unused-ignore]
