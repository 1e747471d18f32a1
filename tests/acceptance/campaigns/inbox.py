"""A consumer with an inbox is killed at any point of its work, the broker sometimes. At the end the effect of each
message is in the database once and in order.

    python -m tests.acceptance --only inbox-postgres --kills 500

The effects have no key that would reject duplicates, and a total is incremented with them: both must be right.
"""

from __future__ import annotations

import mmap
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Literal

import psycopg

import oncemq.client.sync
from oncemq.client.inbox import postgres, sqlite  # noqa: F401 - imported before the first fork
from oncemq.client.inbox.inbox import Inbox
from oncemq.protocol.errors import Fenced
from oncemq.testing.postgres import PostgresServer
from tests.acceptance.campaigns.base import PATIENT, Campaign, Interrupted
from tests.acceptance.campaigns.report import CampaignFailed
from tests.acceptance.processes import DEADLINE_S

Database = Literal["sqlite", "postgres"]
TOPIC, SUBSCRIBER = "orders", "billing"
_LIFE_S_MAX = 0.12
_BROKER_KILL_SHARE = 0.15
#: Share of transactions that are interrupted.
_RAISE_SHARE = 0.1
#: What a consumer is doing. It writes the index to shared memory.
STAGES = ("starting", "opening", "waiting", "inside", "committing", "acking")


class Store:
    """The user's database: how to connect to it, and its tables."""

    def __init__(self, database: Database, address: str) -> None:
        self.database = database
        self._address = address

    def connect(self) -> Any:
        if self.database == "postgres":
            return psycopg.connect(self._address)
        connection = sqlite3.connect(self._address, timeout=DEADLINE_S)
        connection.execute("pragma journal_mode = wal")
        return connection

    def create_tables(self) -> None:
        key = "bigserial primary key" if self.database == "postgres" else "integer primary key autoincrement"
        connection = self.connect()
        connection.execute(f"create table effects (id {key}, number integer not null)")
        connection.execute("create table totals (counted integer not null)")
        connection.execute("insert into totals values (0)")
        connection.commit()
        connection.close()

    def store(self, connection: Any, numbers: list[int]) -> None:
        mark = "%s" if self.database == "postgres" else "?"
        cursor = connection.cursor()
        cursor.executemany(f"insert into effects (number) values ({mark})", [(number,) for number in numbers])
        cursor.execute(f"update totals set counted = counted + {mark}", (len(numbers),))

    def query(self, sql: str) -> list[int]:
        connection = self.connect()
        found = [value for (value,) in connection.execute(sql).fetchall()]
        connection.close()
        return found


@contextmanager
def open_store(database: Database, folder: Path) -> Iterator[Store]:
    """A new database."""
    if database == "sqlite":
        yield Store(database, str(folder / "effects.db"))
        return
    with PostgresServer() as server, server.database() as dsn:
        yield Store(database, dsn)


class Consumer:
    """One process of a consumer."""

    def __init__(self, url: str, store: Store, stage: mmap.mmap, number: int) -> None:
        self._url = url
        self._store = store
        self._stage = stage
        self._random = Random(number)

    def run(self, end: int | None = None) -> int:
        """Consume until it is killed, or until everything below `end` is done."""
        position = 0
        with oncemq.connect(self._url, **PATIENT) as client:
            while end is None or position < end:
                connection = self._store.connect()
                self._enter("opening")
                with Inbox(client.subscription(TOPIC, SUBSCRIBER, auto_ack=False), connection) as inbox:
                    position = inbox.open()
                    # The open request of a killed process may arrive later: then this one opens again.
                    try:
                        position = self._consume(inbox, connection, position, end)
                    except Fenced:
                        continue
                    finally:
                        connection.close()
        return 0

    def _consume(self, inbox: Inbox, connection: Any, position: int, end: int | None) -> int:
        self._watch_commits(inbox)
        while end is None or position < end:
            self._enter("waiting")
            try:
                with inbox.batch(self._random.choice((1, 1, 7, 50)), timeout_s=0.2) as messages:
                    self._enter("inside")
                    self._store.store(connection, [int(message.text) for message in messages])
                    if self._random.random() < _RAISE_SHARE:
                        raise Interrupted
                    position = messages[-1].offset + 1 if messages else position
            except Interrupted:
                continue
        return position

    def _enter(self, stage: str) -> None:
        self._stage[0] = STAGES.index(stage)

    def _watch_commits(self, inbox: Inbox) -> None:
        """Note where a commit begins and ends, so that the report can tell where the kills happened."""
        commit = inbox._database.commit

        def watched() -> None:
            self._enter("committing")
            commit()
            self._enter("acking")

        inbox._database.commit = watched  # type: ignore[method-assign]


class InboxCampaign(Campaign):
    """Kills a consumer with an inbox."""

    def __init__(self, store: Store, folder: Path, seed: int) -> None:
        super().__init__(f"inbox-{store.database}", folder, seed)
        self._store = store
        self._stage = mmap.mmap(-1, 1)
        self._consumers = 0

    def set_up(self) -> None:
        self._store.create_tables()
        self.subscribe(TOPIC, SUBSCRIBER)
        self.start_publisher(TOPIC, batch=40, pause_s=0.005)

    def _consumer(self) -> Consumer:
        self._consumers += 1
        return Consumer(self.urls.next(), self._store, self._stage, self._consumers)

    def kill_once(self) -> None:
        self._stage[0] = STAGES.index("starting")
        consumer = self.start("consumer", self._consumer().run)
        if self.random.random() < _BROKER_KILL_SHARE:
            time.sleep(self.random.uniform(0, _LIFE_S_MAX))
            self.kill_broker(mortal=False)
        time.sleep(self.random.uniform(0, _LIFE_S_MAX))
        code = consumer.kill()
        if code != -signal.SIGKILL:
            raise CampaignFailed(f"a consumer ended unexpectedly with exit code {code}")
        self.kills[STAGES[self._stage[0]]] += 1

    def finish(self) -> None:
        count = self.stop_publisher()
        last = self._consumer()
        self.complete("last consumer", lambda: last.run(count))
        acked = self.ask("acked", lambda client: client.subscriptions(TOPIC)[0].acked)
        numbers = list(map(str, range(count)))
        effects = self._store.query("select number from effects order by id")
        self.report.compare(numbers, numbers, list(map(str, effects)), what="effects")
        self.report.expect("the total", self._store.query("select counted from totals"), [count])
        self.report.expect("the position", self._store.query("select position from oncemq_inbox"), [count])
        self.report.expect("the position at the broker", acked, count)
