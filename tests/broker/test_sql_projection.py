"""The SQL tables show the state of the broker after every commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from oncemq.broker import sql_projection
from oncemq.broker.housekeeping import Policy
from oncemq.broker.sql_projection import project, project_all
from oncemq.engine import events
from oncemq.engine.state.state import State
from oncemq.journal.contract import Journal, RecordRef
from oncemq.journal.postgres import tables
from oncemq.journal.postgres.standby import open_postgres
from oncemq.journal.worker import InlineWorker
from oncemq.protocol import commands
from oncemq.protocol.batch import checksum, decode_batch
from tests.broker.random_work import RandomWork
from tests.broker.rig import Rig

EXTENT_BYTES = 64 * 1024
CLAIM = events.Claim(1, 1, 0, 0)
EAGER = Policy(
    snapshot_bytes=EXTENT_BYTES, snapshot_events=300, copy_extents_min=1, copy_round_bytes=4_000, look_every_ms=0
)


@pytest.fixture
def database(postgres: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        yield connection


def open_rig(dsn: str) -> Rig:
    journal = open_postgres(dsn, lease_ms=60_000, extent_bytes=EXTENT_BYTES, worker=InlineWorker())
    return Rig(journal, policy=EAGER)


def messages_of(state: State, journal: Journal) -> list[tuple[object, ...]]:
    """Return what a reader of every topic would get."""
    found: list[tuple[object, ...]] = []
    for topic in state.topics.values():
        for part in topic.index.slices(topic.index.first, 1 << 40, 1 << 20):
            [(payload, _)] = journal.read([RecordRef(part.position, topic.id, part.first_offset, part.size)])
            batch = decode_batch(bytes(payload), topic.name, topic.id, part.first_offset, part.time_ms, 0, part.count)
            for message in batch:
                left = sum(one.acked <= message.offset for one in topic.subscriptions.values())
                key = message.key
                found.append((topic.name, message.offset, message.value, key, left, message.timestamp_ms, topic.id))
    return sorted(found, key=lambda row: (row[6], row[1]))


def check(database: psycopg.Connection[tuple[Any, ...]], rig: Rig) -> None:
    state = rig.broker.engine.state
    expected = project_all(state)
    topics = database.execute("select id, name, bias, next_offset from oncemq.topic order by id").fetchall()
    assert topics == sorted((row.id, row.name, row.bias, row.next_offset) for row in expected.topics)
    consumers = database.execute("select topic_id, id, pattern, topic, position from oncemq.consumer").fetchall()
    assert sorted(consumers) == sorted(
        (row.key.topic_id, row.key.id, row.key.pattern, row.topic, row.position) for row in expected.consumers
    )
    producers = database.execute("select id, topic from oncemq.producer").fetchall()
    assert sorted(producers) == sorted((row.id, row.topic) for row in expected.producers)
    shown = database.execute(
        """select topic, "offset", content, key, subscribers_left, round(extract(epoch from time) * 1000)::int8,
        topic_id from oncemq.message order by topic_id, "offset" """
    ).fetchall()
    assert shown == messages_of(state, rig.journal)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_tables_follow_random_work(
    postgres: str, database: psycopg.Connection[tuple[Any, ...]], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_ROWS_MAX", 2 if seed == 3 else 1000)
    rig = open_rig(postgres)
    work = RandomWork(rig, seed)
    moved = 0
    for part in range(6):
        work.run(100)
        check(database, rig)
        moved += rig.broker.counters["records_moved"]
        if part % 2:
            rig.broker.stop()
            rig = work.rig = open_rig(postgres)
            check(database, rig)
    assert moved > 0


def test_tables_that_are_out_of_date_are_written_again(
    postgres: str, database: psycopg.Connection[tuple[Any, ...]]
) -> None:
    rig = open_rig(postgres)
    RandomWork(rig, 4).run(80)
    rig.broker.stop()
    database.execute("update oncemq.journal_meta set are_tables_current = false")
    database.execute("update oncemq.journal_record set published_offset = 7")
    database.execute("insert into oncemq.producer values ('of yore', 'log')")
    database.execute("delete from oncemq.topic")
    again = open_rig(postgres)
    again.hello(nonce=2)
    check(database, again)


def test_a_message_is_text_if_possible(postgres: str, database: psycopg.Connection[tuple[Any, ...]]) -> None:
    rig = open_rig(postgres)
    rig.subscribe()
    rig.do(commands.Subscribe("orders", "till", commands.START_EARLIEST))
    rig.put("Pizza für zwei".encode(), b"\xff\xfe", b"", b"zero\0byte")
    rows = database.execute('select "offset", message, content, subscribers_left from oncemq.message').fetchall()
    assert rows == [
        (0, "Pizza für zwei", "Pizza für zwei".encode(), 2),
        (1, None, b"\xff\xfe", 2),
        (2, "", b"", 2),
        (3, None, b"zero\0byte", 2),
    ]


def test_a_producer_entry_may_be_anything(postgres: str, database: psycopg.Connection[tuple[Any, ...]]) -> None:
    rig = open_rig(postgres)
    nested = b'{"topic": "x", "a": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    for value in (b'{"topic": "a\\u0000b"}', b'{"topic": "\xff"}', nested, b"", b'{"topic": "good"}'):
        rig.do(commands.RegistrySet("queue", f"producer/{checksum(value)}", value))
    assert database.execute("select topic from oncemq.producer").fetchall() == [("good",)]


def test_after_a_projection_that_fails_the_tables_are_written_again_later(
    postgres: str, database: psycopg.Connection[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a bug")

    rig = open_rig(postgres)
    rig.subscribe()
    with monkeypatch.context() as patch:
        patch.setattr(sql_projection, "_changes", fail)
        rig.put(b"stored all the same")
    rig.put(b"after it")
    assert database.execute("select are_tables_current from oncemq.journal_meta").fetchone() == (False,)
    rig.broker.stop()
    again = open_rig(postgres)
    again.hello(nonce=2)
    check(database, again)
    assert database.execute("select count(*) from oncemq.message").fetchone() == (2,)


def test_new_and_deleted_patterns_leave_correct_tables(
    postgres: str, database: psycopg.Connection[tuple[Any, ...]]
) -> None:
    rig = open_rig(postgres)
    for name in ("log.eu", "log.us", "other"):
        rig.do(commands.Subscribe(name, "kitchen", commands.START_EARLIEST))
    watch, ignore = (
        commands.Subscribe("log.*", "watcher", commands.START_EARLIEST),
        commands.Unsubscribe("log.*", "watcher"),
    )
    leave = [commands.Unsubscribe(name, "kitchen") for name in ("log.eu", "other")]
    # The operations of one list are committed together.
    rounds: list[list[commands.Operation]] = [[watch], [leave[0]], [ignore], [watch, ignore], [watch], [ignore, watch]]
    rounds.append([leave[1], ignore])
    for operations in rounds:
        rig.post([rig.numbered(operation) for operation in operations])
        rig.rounds()
        check(database, rig)
    assert list(rig.broker.engine.state.topics) == ["log.us"]


def test_a_deleted_pattern_changes_the_topics_that_match_it(postgres: str) -> None:
    rig = open_rig(postgres)
    for name in ("log.eu", "other"):
        rig.do(commands.Subscribe(name, "kitchen", commands.START_EARLIEST))
    rig.do(commands.Subscribe("log.*", "watcher", commands.START_EARLIEST))
    state = rig.broker.engine.state
    began = project(state, [events.PatternSubscribed(CLAIM, "log.*", "watcher", 1, True, True)], "changes")
    assert began is not None
    assert ([row.name for row in began.topics], len(began.consumers)) == (["log.eu"], 1)
    ended = project(state, [events.PatternUnsubscribed(CLAIM, "log.*", "watcher")], "changes")
    assert ended is not None
    assert ([row.name for row in ended.topics], ended.has_all_names) == (["log.eu"], False)


def test_an_invalid_batch_does_not_break_the_view(
    postgres: str, database: psycopg.Connection[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As an older broker stored it.
    monkeypatch.setattr("oncemq.broker.round.batch_problem", lambda *_: None)
    rig = open_rig(postgres)
    rig.subscribe()
    rig.put(b"good")
    huge, short = b"\x01\0\0\0\xff\xff\xff\x7f" + b"\0" * 100, b"\x01\x07\0\0\x02\0\0\0" + b"\xff" * 40
    for payload in (b"", b"\x01", huge, b"\x01\0\0\0\xff\xff\xff\xff" + b"\0" * 100, short, b"\x07" * 100):
        operation = commands.Put("orders", commands.Envelope(1, len(payload), checksum(payload)))
        rig.ask(rig.numbered(operation), payload)
    assert len(rig.broker.engine.state.topics["orders"].index.positions) == 7
    assert database.execute("select message from oncemq.message").fetchall()[0] == ("good",)
