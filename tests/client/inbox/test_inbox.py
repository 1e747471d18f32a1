"""The inbox, on each of its databases: effect and position are stored together, once."""

from __future__ import annotations

import logging
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import oncemq
from oncemq.client.consumer.sync import Subscription, open_now
from oncemq.client.inbox.inbox import Inbox
from oncemq.protocol import errors
from oncemq.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "postgres"], indirect=True)


class Database:
    """A database that can be connected to again and again."""

    def __init__(self, kind: str, where: str) -> None:
        self.kind = kind
        self.where = where
        self._connections: list[Any] = []
        with self.connect() as connection:
            connection.execute("create table effects (number integer primary key, text text)")
            connection.commit()

    def connect(self, **options: Any) -> Any:
        if self.kind == "postgres":
            made: Any = psycopg.connect(self.where, **options)
        else:
            made = sqlite3.connect(self.where, **{"timeout": 0.1, "check_same_thread": False, **options})
        self._connections.append(made)
        return made

    def put(self, connection: Any, message: oncemq.Message, text: str | None = None) -> None:
        mark = "%s" if self.kind == "postgres" else "?"
        sql = f"insert into effects values ({mark}, {mark})"
        connection.execute(sql, (message.offset, message.text if text is None else text))

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Through a connection of its own: what is committed."""
        connection = self.connect()
        rows = list(connection.execute(sql).fetchall())
        connection.close()
        return rows

    def tell(self, sql: str) -> None:
        connection = self.connect()
        connection.execute(sql)
        connection.commit()
        connection.close()

    @property
    def effects(self) -> list[str]:
        return [text for (text,) in self.ask("select text from effects order by number")]

    @property
    def position(self) -> int:
        return int(self.ask("select position from oncemq_inbox")[0][0])

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    where = request.getfixturevalue("postgres") if kind == "postgres" else str(tmp_path / "effects.db")
    made = Database(kind, where)
    yield made
    made.close()


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[oncemq.Client]:
    made = oncemq.connect(f"memory:{request.node.name}")
    made.subscribe("t", "s")
    yield made
    made._close(clean=False)


def put(client: oncemq.Client, *texts: str) -> None:
    client.put_many("t", list(texts))


def open_inbox(client: oncemq.Client, connection: Any, **options: Any) -> Inbox:
    return Inbox(client.subscription("t", "s", auto_ack=False), connection, **options)


def consume(client: oncemq.Client, database: Database) -> list[str]:
    """All that a new consumer gets, and its effects."""
    connection = database.connect()
    given = []
    with open_inbox(client, connection) as inbox:
        for message in inbox.messages(timeout_s=0):
            database.put(connection, message)
            given.append(message.text)
    connection.close()
    return given


def acked(client: oncemq.Client) -> int:
    return client.subscriptions("t")[0].acked


def lose_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process died after each commit."""
    monkeypatch.setattr(Subscription, "ack", lambda *_, **__: None)


# Effect and position.


def test_effect_and_position_are_stored_together(client: oncemq.Client, database: Database) -> None:
    put(client, "a", "b")
    connection = database.connect()
    inbox = open_inbox(client, connection)
    with inbox.message(timeout_s=5) as message:
        assert message is not None
        database.put(connection, message)
        assert database.effects == []
        assert database.position == 0
    assert (database.effects, database.position) == (["a"], 1)


def test_the_broker_gets_the_ack_after_the_commit(client: oncemq.Client, database: Database) -> None:
    put(client, "a", "b", "c")
    assert consume(client, database) == ["a", "b", "c"]
    assert (database.effects, database.position, acked(client)) == (["a", "b", "c"], 3, 3)


def test_an_exception_rolls_back_and_the_same_message_comes_again(client: oncemq.Client, database: Database) -> None:
    put(client, "a", "b")
    connection = database.connect()
    inbox = open_inbox(client, connection)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), inbox.message(timeout_s=5) as message:
            assert message is not None
            assert message.text == "a"
            database.put(connection, message)
            raise ZeroDivisionError
    assert (database.effects, database.position) == ([], 0)
    for message in inbox.messages(timeout_s=0):
        database.put(connection, message)
    assert database.effects == ["a", "b"]


def test_when_nothing_came_there_is_no_transaction(client: oncemq.Client, database: Database) -> None:
    connection = database.connect()
    inbox = open_inbox(client, connection)
    with inbox.message() as message:
        assert message is None
    with inbox.batch() as messages:
        assert messages == []
    assert list(inbox.messages(timeout_s=0)) == []
    assert list(inbox.batches(timeout_s=0)) == []
    put(client, "a")
    assert [message.text for message in inbox.messages(timeout_s=0)] == ["a"]


def test_a_batch_is_one_transaction(client: oncemq.Client, database: Database) -> None:
    put(client, *"abcdef")
    connection = database.connect()
    inbox = open_inbox(client, connection)
    with pytest.raises(ZeroDivisionError), inbox.batch(4) as messages:
        for message in messages:
            database.put(connection, message)
        raise ZeroDivisionError
    assert (database.effects, database.position) == ([], 0)
    sizes = []
    for messages in inbox.batches(4, timeout_s=0):
        sizes.append(len(messages))
        for message in messages:
            database.put(connection, message)
    assert sizes == [4, 2]
    assert (database.effects, database.position) == (list("abcdef"), 6)


def test_a_batch_that_was_rolled_back_may_come_again_one_by_one(client: oncemq.Client, database: Database) -> None:
    put(client, *"abcd")
    connection = database.connect()
    inbox = open_inbox(client, connection)
    with pytest.raises(ZeroDivisionError), inbox.batch(3):
        raise ZeroDivisionError
    with inbox.batch(2) as messages:
        assert [message.text for message in messages] == ["a", "b"]
    assert [message.text for message in inbox.messages(timeout_s=0)] == ["c", "d"]
    with pytest.raises(ValueError, match="messages_max"), inbox.batch(0):
        pass


def test_breaking_out_of_a_loop_rolls_back(client: oncemq.Client, database: Database) -> None:
    put(client, "a", "b", "c")
    connection = database.connect()
    inbox = open_inbox(client, connection)
    for message in inbox.messages(timeout_s=0):
        database.put(connection, message)
        if message.text == "b":
            break
    assert (database.effects, database.position) == (["a"], 1)
    assert [message.text for message in inbox.messages(timeout_s=0)] == ["b", "c"]


def test_a_block_within_a_block_is_refused(client: oncemq.Client, database: Database) -> None:
    put(client, "a", "b")
    connection = database.connect()
    inbox = open_inbox(client, connection)
    with inbox.message() as message:
        assert message is not None
        with pytest.raises(RuntimeError, match="still open"), inbox.message():
            pass
        with pytest.raises(RuntimeError, match="still open"):
            inbox.skip_to(2)
        database.put(connection, message)
    assert (database.effects, database.position) == (["a"], 1)


# What the database has seen.


def test_what_the_database_has_stored_is_skipped_although_the_broker_has_no_ack(
    client: oncemq.Client, database: Database
) -> None:
    put(client, "a", "b", "c")
    with pytest.MonkeyPatch.context() as patch:
        lose_acks(patch)
        connection = database.connect()
        inbox = open_inbox(client, connection)
        with inbox.batch(2) as messages:
            for message in messages:
                database.put(connection, message)
    assert (acked(client), database.position) == (0, 2)
    assert open_inbox(client, database.connect()).open() == 2
    assert consume(client, database) == ["c"]
    assert (acked(client), database.effects) == (3, ["a", "b", "c"])


def test_opening_tells_the_broker_how_far_the_database_is(client: oncemq.Client, database: Database) -> None:
    put(client, "a", "b", "c")
    with pytest.MonkeyPatch.context() as patch:
        lose_acks(patch)
        assert consume(client, database) == ["a", "b", "c"]
    with open_inbox(client, database.connect()) as inbox:
        assert inbox.open() == 3
    assert acked(client) == 3


def test_a_database_without_a_row_starts_where_the_subscription_stands(
    client: oncemq.Client, database: Database
) -> None:
    put(client, "a", "b", "c")
    with client.subscription("t", "s") as subscription:
        subscription.get()
    assert consume(client, database) == ["b", "c"]


def test_a_gap_in_the_offsets_is_no_matter(client: oncemq.Client, database: Database) -> None:
    put(client, *"abcdef")
    connection = database.connect()
    inbox = open_inbox(client, connection)
    with inbox.message() as message:
        assert message is not None
    inbox._subscription.ack(3)
    with inbox.message() as message:
        assert message is not None
        assert message.text == "e"
    assert database.position == 5
    assert consume(client, database) == ["f"]


def test_two_subscribers_have_a_row_each(client: oncemq.Client, database: Database) -> None:
    client.subscribe("t", "other")
    put(client, "a", "b")
    connection = database.connect()
    first = open_inbox(client, connection)
    second = Inbox(client.subscription("t", "other", auto_ack=False), connection)
    assert [message.text for message in first.messages(timeout_s=0)] == ["a", "b"]
    assert [message.text for message in second.messages(timeout_s=0)] == ["a", "b"]
    assert len(database.ask("select * from oncemq_inbox")) == 2


def test_a_topic_that_was_made_again_has_another_row(client: oncemq.Client, database: Database) -> None:
    put(client, "a", "b")
    assert consume(client, database) == ["a", "b"]
    database.tell("delete from effects")
    client.delete_topic("t")
    client.subscribe("t", "s")
    put(client, "c")
    assert consume(client, database) == ["c"]
    assert database.ask("select position, topic from oncemq_inbox order by topic_id") == [(2, "t"), (1, "t")]


# One owner.


def test_a_second_consumer_fences_the_first_in_the_database(client: oncemq.Client, database: Database) -> None:
    put(client, "a", "b", "c")
    connection = database.connect()
    first = open_inbox(client, connection)
    with first.batch(2):
        pass
    # Its messages were delivered already: the broker has nothing to refuse.
    with pytest.raises(ZeroDivisionError), first.message():
        raise ZeroDivisionError
    second = open_inbox(client, database.connect())
    assert second.open() == 2
    for _ in range(2):
        with pytest.raises(errors.Fenced), first.message() as message:
            assert message is not None
            database.put(connection, message)
    assert (database.effects, database.position) == ([], 2)
    assert [message.text for message in second.messages(timeout_s=0)] == ["c"]


def test_a_consumer_that_does_not_hear_from_the_broker_is_fenced_by_the_database(
    client: oncemq.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "a", "b", "c")
    # All messages are fetched ahead, and no ack is sent: the broker has no occasion to refuse anything.
    lose_acks(monkeypatch)
    first = open_inbox(client, database.connect())
    with first.message():
        pass
    assert open_inbox(client, database.connect()).open() == 1
    for _ in range(2):
        with pytest.raises(errors.Fenced, match="in the database"), first.message():
            pass
    assert database.position == 1


def test_a_consumer_that_was_overtaken_while_it_opened_is_fenced(client: oncemq.Client, database: Database) -> None:
    put(client, "a")
    slow = open_inbox(client, database.connect())
    open_now(slow._subscription)
    quick = open_inbox(client, database.connect())
    quick.open()
    with pytest.raises(errors.Fenced, match="database"):
        slow.open()
    assert [message.text for message in quick.messages(timeout_s=0)] == ["a"]


def test_a_row_that_was_changed_by_hand_fences(client: oncemq.Client, database: Database) -> None:
    put(client, "a", "b")
    inbox = open_inbox(client, database.connect())
    with inbox.message():
        pass
    database.tell("update oncemq_inbox set position = 0")
    for _ in range(2):
        with pytest.raises(errors.Fenced), inbox.message():
            pass
    database.tell("delete from oncemq_inbox")
    inbox = open_inbox(client, database.connect())
    inbox.open()
    database.tell("delete from oncemq_inbox")
    with pytest.raises(errors.Fenced), inbox.message():
        pass


def test_a_row_that_was_set_back_behind_a_rollback_fences(client: oncemq.Client, database: Database) -> None:
    put(client, "a", "b", "c")
    inbox = open_inbox(client, database.connect())
    with inbox.batch(2):
        pass
    with pytest.raises(ZeroDivisionError), inbox.message():
        raise ZeroDivisionError
    database.tell("update oncemq_inbox set position = 0")
    with pytest.raises(errors.Fenced), inbox.message():
        pass
    assert database.position == 0


def test_consumers_that_open_at_once_leave_one_owner(client: oncemq.Client, database: Database) -> None:
    """There is no table and no row yet. Whichever consumer is last, each message is stored once."""
    put(client, *(str(number) for number in range(20)))
    barrier = threading.Barrier(4)
    failures: list[BaseException] = []

    def body() -> None:
        connection = database.connect(**({"timeout": 30.0} if database.kind == "sqlite" else {}))
        inbox = open_inbox(client, connection)
        open_now(inbox._subscription)
        barrier.wait()
        try:
            for message in inbox.messages(timeout_s=0):
                database.put(connection, message)
        except errors.Fenced:
            pass
        except BaseException as error:
            failures.append(error)
        connection.close()

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    consume(client, database)
    assert database.effects == [str(number) for number in range(20)]
    assert database.position == 20


# A database that was set back.


def test_a_database_that_was_set_back_is_noticed(client: oncemq.Client, database: Database) -> None:
    put(client, *"abcd")
    connection = database.connect()
    with open_inbox(client, connection) as inbox, inbox.batch(3):
        pass
    connection.close()
    database.tell("update oncemq_inbox set position = 1")
    for _ in range(2):
        inbox = open_inbox(client, database.connect())
        with pytest.raises(errors.InboxRewound, match="Messages 1 to 2"), inbox.message():
            pass
    assert database.position == 1
    assert inbox._error is None
    inbox.skip_to(3)
    assert [message.text for message in inbox.messages(timeout_s=0)] == ["d"]
    assert database.position == 4


def test_a_seek_moves_the_database_and_the_broker(client: oncemq.Client, database: Database) -> None:
    client.create_topic("t", retain_ms=3_600_000, alter=True)
    put(client, *"abcd")
    connection = database.connect()
    with open_inbox(client, connection) as inbox:
        assert [message.text for message in inbox.messages(timeout_s=0)] == list("abcd")
        assert inbox.seek(1) == 1
        assert (database.position, acked(client)) == (1, 1)
        with pytest.raises(ZeroDivisionError), inbox.message():
            # A message that was rolled back is not delivered again after a seek.
            raise ZeroDivisionError
        assert inbox.seek("earliest") == 0
        assert [message.text for message in inbox.messages(timeout_s=0)] == list("abcd")
        assert inbox.seek("new") == 4
        with inbox.message() as message:
            assert message is None
    database.tell("update oncemq_inbox set position = 2")
    with open_inbox(client, database.connect()) as restored:
        assert restored.seek(2) == 2
        assert [message.text for message in restored.messages(timeout_s=0)] == list("cd")
        with pytest.raises(errors.SubscriptionFenced):
            inbox = open_inbox(client, connection)
            inbox.open()
            restored.seek(0)
    assert (database.position, acked(client)) == (4, 4)


def test_what_is_no_database_leaves_no_subscription_behind(client: oncemq.Client, database: Database) -> None:
    for connection, options in (("x.db", {}), (database.connect(), {"table": "no table"})):
        with pytest.raises((TypeError, errors.SettingInvalid)):
            client.inbox("t", "another", connection, **options)  # type: ignore[arg-type]
    assert [entry.subscriber for entry in client.subscriptions("t")] == ["s"]


def test_a_skip_that_does_not_reach_far_enough_is_no_way_out(client: oncemq.Client, database: Database) -> None:
    put(client, *"abcd")
    with open_inbox(client, database.connect()) as inbox, inbox.batch(3):
        pass
    database.tell("update oncemq_inbox set position = 0")
    with pytest.raises(errors.InboxRewound):
        open_inbox(client, database.connect()).skip_to(2)
    assert database.position == 0


def test_messages_that_are_still_stored_can_be_had_again(client: oncemq.Client, database: Database) -> None:
    client.create_topic("kept", retain_ms=3_600_000)
    client.subscribe("kept", "s")
    client.put_many("kept", list("abcd"))

    def inbox() -> Inbox:
        return Inbox(client.subscription("kept", "s", auto_ack=False), database.connect())

    with inbox() as first, first.batch(3):
        pass
    database.tell("update oncemq_inbox set position = 1")
    client.seek("kept", "s", 1)
    assert [message.text for message in inbox().messages(timeout_s=0)] == ["b", "c", "d"]


def test_seeking_back_repeats_nothing_that_the_database_has_done(client: oncemq.Client, database: Database) -> None:
    client.create_topic("kept", retain_ms=3_600_000)
    client.subscribe("kept", "s")
    client.put_many("kept", list("abcd"))
    connection = database.connect()
    inbox = Inbox(client.subscription("kept", "s", auto_ack=False), connection)
    with inbox.batch(2):
        pass
    client.seek("kept", "s", "earliest")
    assert [message.text for message in inbox.messages(timeout_s=0)] == ["c", "d"]
    client.seek("kept", "s", "earliest")
    assert Inbox(client.subscription("kept", "s", auto_ack=False), connection).open() == 4


def test_a_broker_that_was_set_back_is_noticed(client: oncemq.Client, database: Database) -> None:
    put(client, "a")
    open_inbox(client, database.connect()).open()
    database.tell("update oncemq_inbox set position = 7")
    with pytest.raises(errors.OffsetOutOfRange, match="which the broker never had"):
        open_inbox(client, database.connect()).open()


def test_a_row_of_a_later_version_is_left_alone(client: oncemq.Client, database: Database) -> None:
    open_inbox(client, database.connect()).open()
    database.tell("update oncemq_inbox set version = 2")
    before = database.ask("select * from oncemq_inbox")
    with pytest.raises(errors.VersionUnsupported, match="version 2"):
        open_inbox(client, database.connect()).open()
    assert database.ask("select * from oncemq_inbox") == before


def test_skipping_moves_the_database_and_the_broker_and_never_back(client: oncemq.Client, database: Database) -> None:
    put(client, *"abcdef")
    with open_inbox(client, database.connect()) as inbox:
        with pytest.raises(ZeroDivisionError), inbox.batch(3):
            raise ZeroDivisionError
        inbox.skip_to(2)
        with inbox.message() as message:
            assert message is not None
            assert message.text == "c"
        inbox.skip_to(5)
        inbox.skip_to(1)
        with pytest.raises(errors.OffsetOutOfRange):
            inbox.skip_to(8)
        assert database.position == 5
        assert [message.text for message in inbox.messages(timeout_s=0)] == ["f"]
    assert (database.position, acked(client)) == (6, 6)


# Connections of all kinds.


def test_a_connection_inside_a_transaction_is_refused_and_left_alone(client: oncemq.Client, database: Database) -> None:
    put(client, "a")
    connection = database.connect()
    connection.execute("insert into effects values (77, 'mine')")
    inbox = open_inbox(client, connection)
    with pytest.raises(RuntimeError, match="inside a transaction"):
        inbox.open()
    connection.commit()
    inbox.open()
    connection.execute("insert into effects values (78, 'mine too')")
    with pytest.raises(RuntimeError, match="inside a transaction"), inbox.message():
        pass
    connection.commit()
    assert database.effects == ["mine", "mine too"]
    assert [message.text for message in inbox.messages(timeout_s=0)] == ["a"]


def test_a_commit_inside_is_noticed(client: oncemq.Client, database: Database) -> None:
    put(client, "a", "b")
    connection = database.connect()
    inbox = open_inbox(client, connection)
    with pytest.raises(RuntimeError, match="ended inside the block"), inbox.message():
        connection.execute("COMMIT")
    with pytest.raises(RuntimeError, match="ended inside the block"), inbox.message() as message:
        assert message is not None
        connection.execute("COMMIT")
        # Begins another transaction, which is not the inbox's.
        database.put(connection, message)
    assert database.effects == []
    # The connection can be used on.
    for message in inbox.messages(timeout_s=0):
        database.put(connection, message)


def test_a_rollback_inside_is_noticed(client: oncemq.Client, database: Database) -> None:
    put(client, "a")
    connection = database.connect()
    inbox = open_inbox(client, connection)
    with pytest.raises(RuntimeError, match="ended inside the block"), inbox.message():
        connection.execute("ROLLBACK")
    assert database.position == 0
    assert [message.text for message in inbox.messages(timeout_s=0)] == ["a"]


def test_rows_may_have_any_form(client: oncemq.Client, database: Database) -> None:
    put(client, "a")
    if database.kind == "postgres":
        connection = database.connect(row_factory=dict_row, cursor_factory=psycopg.RawCursor)
    else:
        connection = database.connect()
        connection.row_factory = lambda cursor, row: dict(enumerate(row))
        connection.text_factory = bytes
    inbox = open_inbox(client, connection)
    assert [message.text for message in inbox.messages(timeout_s=0)] == ["a"]
    assert database.position == 1


def test_the_table_may_have_another_name(client: oncemq.Client, database: Database) -> None:
    put(client, "a")
    inbox = open_inbox(client, database.connect(), table="my_inbox")
    assert [message.text for message in inbox.messages(timeout_s=0)] == ["a"]
    assert database.ask("select position from my_inbox") == [(1,)]
    for wrong in ("", "a b", 'x"; drop table effects; --', "a.b.c", "é"):
        with pytest.raises(errors.SettingInvalid, match="table"):
            open_inbox(client, database.connect(), table=wrong)


def test_a_wrong_connection_is_refused_by_name(client: oncemq.Client, database: Database) -> None:
    with pytest.raises(TypeError, match=r"psycopg\.Connection.*builtins\.str"):
        open_inbox(client, "postgresql://somewhere")
    with pytest.raises(ValueError, match="auto_ack"):
        Inbox(client.subscription("t", "s"), database.connect())


def test_without_psycopg_the_pip_command_is_named(
    client: oncemq.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "oncemq.client.inbox.postgres", raising=False)
    monkeypatch.delattr("oncemq.client.inbox.postgres", raising=False)
    with pytest.raises(errors.MissingExtra, match=r"pip install 'oncemq\[postgres\]'"):
        open_inbox(client, object())
    open_inbox(client, sqlite3.connect(":memory:"))


def test_a_closed_inbox_says_so(client: oncemq.Client, database: Database) -> None:
    inbox = open_inbox(client, database.connect())
    inbox.open()
    inbox.close()
    inbox.close()
    with pytest.raises(errors.ClientClosed, match="inbox"), inbox.message():
        pass


def test_commits_that_a_power_failure_may_undo_are_warned_of(
    client: oncemq.Client, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    connection = database.connect()
    with caplog.at_level(logging.WARNING, "oncemq.inbox"):
        open_inbox(client, connection).open()
        assert caplog.messages == []
        if database.kind == "postgres":
            connection.execute("set synchronous_commit = off")
        else:
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = normal")
        connection.commit()
        open_inbox(client, connection).open()
    assert len(caplog.messages) == 1
    assert "synchronous" in caplog.text


# When things break.


def test_an_unknown_end_of_a_commit_is_looked_up_in_the_table(
    client: oncemq.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "a", "b")
    connection = database.connect()
    inbox = open_inbox(client, connection)
    inbox.open()
    commit: Callable[[], None] = inbox._database.commit

    def commit_and_fail() -> None:
        commit()
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(inbox._database, "commit", commit_and_fail)
    with pytest.raises(ConnectionError), inbox.message() as message:
        assert message is not None
        database.put(connection, message)
    monkeypatch.undo()
    assert database.effects == ["a"]
    # The same inbox finds out, and so does the next one.
    with pytest.raises(ZeroDivisionError), inbox.message() as message:
        assert message is not None
        assert message.text == "b"
        raise ZeroDivisionError
    assert consume(client, database) == ["b"]


def test_a_broker_that_comes_back_is_gone_on_with(
    broker_process: BrokerProcess, database: Database, request: pytest.FixtureRequest
) -> None:
    broker_process.start()
    with broker_process.connect() as client:
        client.subscribe("t", "s")
        put(client, "a", "b", "c")
        connection = database.connect()
        inbox = open_inbox(client, connection)
        given = []
        for message in inbox.messages(timeout_s=1):
            database.put(connection, message)
            given.append(message.text)
            if message.text in ("a", "c"):
                broker_process.restart()
            if message.text == "c":
                put(client, "d")
        assert given == list("abcd")
        assert (database.effects, database.position) == (list("abcd"), 4)
        inbox.close()
        assert acked(client) == 4


def test_a_broker_that_is_away_does_not_keep_a_message_from_being_stored(
    broker_process: BrokerProcess, database: Database
) -> None:
    broker_process.start()
    client = broker_process.connect(timeout_s=1.0, tries=1)
    client.subscribe("t", "s")
    put(client, "a", "b")
    connection = database.connect()
    inbox = open_inbox(client, connection)
    with inbox.message() as message:
        assert message is not None
        database.put(connection, message)
        broker_process.kill()
    inbox.close()
    assert (database.effects, database.position) == (["a"], 1)
    client._close(clean=False)
    broker_process.start()
    with broker_process.connect() as client:
        assert consume(client, database) == ["b"]
