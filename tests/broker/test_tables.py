"""The tables that people query show what the broker knows, after every commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from oncemq.broker.housekeeping import Policy
from oncemq.broker.projecting import everything
from oncemq.engine import commands as co
from oncemq.engine.state import State
from oncemq.journal.contract import Journal, Wanted
from oncemq.journal.postgres import open_postgres
from oncemq.journal.worker import InlineWorker
from oncemq.message import decode_batch
from tests.broker.random_work import RandomWork
from tests.broker.rig import Rig

EXTENT_BYTES = 64 * 1024
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
    """What a reader of every topic would get."""
    found: list[tuple[object, ...]] = []
    for topic in state.topics.values():
        for part in topic.index.slices(topic.index.first, 1 << 40, 1 << 20):
            [(payload, _)] = journal.read([Wanted(part.position, topic.id, part.first_offset, part.size)])
            batch = decode_batch(payload, topic.name, topic.id, part.first_offset, part.time_ms, 0, part.count)
            for message in batch:
                left = sum(one.acked <= message.offset for one in topic.subscriptions.values())
                key = message.key
                found.append((topic.name, message.offset, message.value, key, left, message.timestamp_ms, topic.id))
    return sorted(found, key=lambda row: (row[6], row[1]))


def check(database: psycopg.Connection[tuple[Any, ...]], rig: Rig) -> None:
    state = rig.broker.engine.state
    expected = everything(state)
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
    postgres: str, database: psycopg.Connection[tuple[Any, ...]], seed: int
) -> None:
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


def test_tables_that_are_out_of_date_are_written_anew(
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


def test_a_message_is_text_where_it_can_be(postgres: str, database: psycopg.Connection[tuple[Any, ...]]) -> None:
    rig = open_rig(postgres)
    rig.subscribe()
    rig.do(co.Subscribe("orders", "till", co.START_EARLIEST))
    rig.put("Pizza für zwei".encode(), b"\xff\xfe", b"", b"zero\0byte")
    rows = database.execute('select "offset", message, content, subscribers_left from oncemq.message').fetchall()
    assert rows == [
        (0, "Pizza für zwei", "Pizza für zwei".encode(), 2),
        (1, None, b"\xff\xfe", 2),
        (2, "", b"", 2),
        (3, None, b"zero\0byte", 2),
    ]
