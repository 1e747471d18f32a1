"""What is SQLite's own about an inbox: modes of a connection, locks, stray commits."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oncemq
from oncemq.client.inbox.inbox import Inbox


class AlwaysInside(sqlite3.Connection):
    """Behaves as a connection of Python 3.12 with `autocommit=False`: a transaction is always open."""

    autocommit = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.isolation_level = None
        self.execute("BEGIN")

    def commit(self) -> None:
        self.execute("COMMIT")
        self.execute("BEGIN")

    def rollback(self) -> None:
        self.execute("ROLLBACK")
        self.execute("BEGIN")


class CommitsNothing(sqlite3.Connection):
    """Behaves as one with `autocommit=True`: `commit` and `rollback` do nothing."""

    autocommit = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.isolation_level = None

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        pass


MODES: dict[str, dict[str, Any]] = {
    "deferred": {},
    "immediate": {"isolation_level": "IMMEDIATE"},
    "exclusive": {"isolation_level": "EXCLUSIVE"},
    "isolation_level None": {"isolation_level": None},
    "autocommit True": {"factory": CommitsNothing},
    "autocommit False": {"factory": AlwaysInside},
}


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[oncemq.Client]:
    made = oncemq.connect(f"memory:{request.node.name}")
    made.subscribe("t", "s")
    made.put_many("t", ["a", "b", "c"])
    yield made
    made._close(clean=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "effects.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table effects (text)")
    return path


def open_inbox(client: oncemq.Client, connection: sqlite3.Connection) -> Inbox:
    return Inbox(client.subscription("t", "s", auto_ack=False), connection)


def effects(path: Path) -> list[str]:
    return [text for (text,) in sqlite3.connect(path).execute("select text from effects order by rowid")]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_a_connection_will_do(client: oncemq.Client, path: Path, mode: str) -> None:
    connection = sqlite3.connect(path, timeout=0.1, **MODES[mode])
    was_inside = connection.in_transaction
    inbox = open_inbox(client, connection)
    with pytest.raises(ZeroDivisionError), inbox.message():
        connection.execute("insert into effects values ('wrong')")
        raise ZeroDivisionError
    for message in inbox.messages(timeout_s=0):
        connection.execute("insert into effects values (?)", (message.text,))
        assert message.text not in effects(path)
    assert effects(path) == ["a", "b", "c"]
    assert connection.in_transaction == was_inside
    # Whatever is left open must not hold the lock.
    with sqlite3.connect(path, timeout=0.1) as another:
        assert another.execute("update oncemq_inbox set topic = topic returning position").fetchall() == [(3,)]


def test_a_commit_inside_is_noticed_where_python_keeps_a_transaction_open(client: oncemq.Client, path: Path) -> None:
    connection = sqlite3.connect(path, factory=AlwaysInside)
    inbox = open_inbox(client, connection)
    with pytest.raises(RuntimeError, match="ended inside"), inbox.message():
        connection.commit()
    assert [message.text for message in inbox.messages(timeout_s=0)] == ["b", "c"]


@pytest.mark.parametrize("how", ["with", "commit", "script"])
def test_a_stray_commit_doubles_nothing(client: oncemq.Client, path: Path, how: str) -> None:
    connection = sqlite3.connect(path)
    inbox = open_inbox(client, connection)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="ended inside"), inbox.message() as message:
            assert message is not None
            connection.execute("insert into effects values (?)", (message.text,))
            if how == "with":
                with connection:
                    pass
            elif how == "commit":
                connection.commit()
            else:
                connection.executescript("select 1;")
    assert effects(path) == ["a", "b", "c"]
    with inbox.message() as message:
        assert message is None


def test_a_locked_database_raises_and_the_message_comes_again(client: oncemq.Client, path: Path) -> None:
    connection = sqlite3.connect(path, timeout=0.05)
    inbox = open_inbox(client, connection)
    inbox.open()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"), inbox.message():
        pass
    holder.execute("ROLLBACK")
    # A reader that stays keeps the commit itself from happening.
    holder.execute("BEGIN")
    holder.execute("select * from effects").fetchall()
    with pytest.raises(sqlite3.OperationalError, match="locked"), inbox.message():
        connection.execute("insert into effects values ('wrong')")
    holder.execute("ROLLBACK")
    for message in inbox.messages(timeout_s=0):
        connection.execute("insert into effects values (?)", (message.text,))
    assert effects(path) == ["a", "b", "c"]
