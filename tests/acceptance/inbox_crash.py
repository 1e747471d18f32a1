"""The inbox's crash campaign: a consumer is killed again and again at any point of its work, the broker now and
then; in the end each message's effect is in the database once, and in order.

    python -m tests.acceptance.inbox_crash --kills 500 --database postgres

The effects have no key that would keep a double out, and beside them a total is counted up: both must come out right.
"""

from __future__ import annotations

import argparse
import json
import mmap
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
import psycopg

import oncemq.client.sync
from oncemq.client.inbox import postgres, sqlite  # noqa: F401 - imported before the first fork
from oncemq.client.inbox.inbox import Inbox
from oncemq.client.runtime.transport import ZmqTransport  # noqa: F401 - the same
from oncemq.protocol.errors import Fenced
from oncemq.testing.broker_process import free_url
from oncemq.testing.postgres import PostgresServer
from tests.acceptance.crash import CampaignFailed
from tests.acceptance.nursery import Child
from tests.acceptance.processes import DEADLINE_S
from tests.acceptance.progress import Progress
from tests.acceptance.shim_broker import live, settings_for
from tests.acceptance.workers import PATIENT

Database = Literal["sqlite", "postgres"]
TOPIC, SUBSCRIBER = "orders", "billing"
LIFE_S_MAX = 0.12
BATCH = 40
BROKER_KILL_SHARE = 0.15
#: Of the blocks, those that raise in the middle.
RAISE_SHARE = 0.1
#: What a consumer is at, as its last byte in shared memory tells.
STAGES = ("starting", "opening", "waiting", "inside", "committing", "acking")


class Evidence(msgspec.Struct, frozen=True):
    problems: list[str]
    #: What the consumers were at when they were killed, and the broker's kills.
    kills: dict[str, int]
    published: int
    effects: int
    seconds: float


class Store:
    """The user's database: how to connect to it, and its tables."""

    def __init__(self, database: Database, where: str) -> None:
        self._database = database
        self._where = where

    def connect(self) -> Any:
        if self._database == "postgres":
            return psycopg.connect(self._where)
        connection = sqlite3.connect(self._where, timeout=DEADLINE_S)
        connection.execute("pragma journal_mode = wal")
        return connection

    def make(self) -> None:
        key = "bigserial primary key" if self._database == "postgres" else "integer primary key autoincrement"
        connection = self.connect()
        connection.execute(f"create table effects (place {key}, number integer not null)")
        connection.execute("create table totals (counted integer not null)")
        connection.execute("insert into totals values (0)")
        connection.commit()
        connection.close()

    def store(self, connection: Any, numbers: list[int]) -> None:
        mark = "%s" if self._database == "postgres" else "?"
        cursor = connection.cursor()
        cursor.executemany(f"insert into effects (number) values ({mark})", [(number,) for number in numbers])
        cursor.execute(f"update totals set counted = counted + {mark}", (len(numbers),))

    def ask(self, sql: str) -> list[int]:
        connection = self.connect()
        found = [value for (value,) in connection.execute(sql).fetchall()]
        connection.close()
        return found


class Interrupted(Exception):
    """A handler that fails: its effects must be rolled back."""


class Consumer:
    """One life of a consumer, in a process of its own."""

    def __init__(self, url: str, store: Store, stage: mmap.mmap, life: int) -> None:
        self._url = url
        self._store = store
        self._stage = stage
        self._random = Random(life)

    def run(self, end: int | None = None) -> int:
        """Until it is killed; with `end`, until everything below is done."""
        position = 0
        with oncemq.connect(self._url, timeout_s=PATIENT[0], tries=PATIENT[1]) as client:
            while end is None or position < end:
                connection = self._store.connect()
                self._at("opening")
                with Inbox(client.subscription(TOPIC, SUBSCRIBER, auto_ack=False), connection) as inbox:
                    position = inbox.open()
                    # An opening of a killed process may still have been on its way: then this one opens again.
                    try:
                        position = self._consume(inbox, connection, position, end)
                    except Fenced:
                        continue
                    finally:
                        connection.close()
        return 0

    def _consume(self, inbox: Inbox, connection: Any, position: int, end: int | None) -> int:
        self._watch(inbox)
        while end is None or position < end:
            self._at("waiting")
            try:
                with inbox.batch(self._random.choice((1, 1, 7, 50)), timeout_s=0.2) as messages:
                    self._at("inside")
                    self._store.store(connection, [int(message.text) for message in messages])
                    if self._random.random() < RAISE_SHARE:
                        raise Interrupted
                    position = messages[-1].offset + 1 if messages else position
            except Interrupted:
                continue
        return position

    def _at(self, stage: str) -> None:
        self._stage[0] = STAGES.index(stage)

    def _watch(self, inbox: Inbox) -> None:
        """Note where a commit begins and ends, so that the evidence can tell where the kills fell."""
        commit = inbox._database.commit

        def watched() -> None:
            self._at("committing")
            commit()
            self._at("acking")

        inbox._database.commit = watched  # type: ignore[method-assign]


class Publisher:
    """Numbers its messages from 0 on, until it is told to stop."""

    def __init__(self, url: str, count_path: Path) -> None:
        self._url = url
        self._count_path = count_path
        self._is_stopping = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._stop)
        count = 0
        with oncemq.connect(self._url, timeout_s=PATIENT[0], tries=PATIENT[1]) as client:
            while not self._is_stopping:
                client.put_many(TOPIC, [str(number) for number in range(count, count + BATCH)])
                count += BATCH
                time.sleep(0.005)
        self._count_path.write_text(str(count))
        return 0

    def _stop(self, *_: object) -> None:
        self._is_stopping = True


class Campaign:
    def __init__(self, folder: Path, store: Store, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._folder = folder
        self._store = store
        self._random = Random(seed)
        self._url = free_url()
        self._settings = settings_for(str(folder / "data"), self._url)
        self._stage = mmap.mmap(-1, 1)
        self._children: dict[str, Child] = {}

    def run(self, kills: int, progress: Progress) -> Evidence:
        began_s = time.monotonic()
        try:
            self._set_up()
            for life in range(kills):
                self._kill_once(life)
                progress.show(life + 1, f"{self.kills['broker']} brokers too")
            published, acked = self._finish(kills)
        finally:
            for child in self._children.values():
                child.kill()
        return self._judge(published, acked, time.monotonic() - began_s)

    def _set_up(self) -> None:
        self._store.make()
        self._start_broker()

        def subscribe() -> int:
            with oncemq.connect(self._url) as client:
                client.subscribe(TOPIC, SUBSCRIBER)
            return 0

        self._finish_child("subscribing", self._start("subscribing", subscribe))
        self._start("publisher", Publisher(self._url, self._folder / "count").run)

    def _start(self, name: str, body: Callable[[], int]) -> Child:
        self._children[name] = Child(lambda _: body(), self._folder / "workers.log")
        return self._children[name]

    def _start_broker(self) -> None:
        broker = Child(lambda ready: live(self._settings, None, lambda _: ready()), self._folder / "broker.log")
        self._children["broker"] = broker
        if not broker.wait_ready(DEADLINE_S):
            raise CampaignFailed(f"the broker did not start (exit code {broker.poll()})")

    def _kill_once(self, life: int) -> None:
        self._stage[0] = STAGES.index("starting")
        consumer = self._start("consumer", Consumer(self._url, self._store, self._stage, life).run)
        if self._random.random() < BROKER_KILL_SHARE:
            time.sleep(self._random.uniform(0, LIFE_S_MAX))
            self._children["broker"].kill()
            self.kills["broker"] += 1
            self._start_broker()
        time.sleep(self._random.uniform(0, LIFE_S_MAX))
        code = consumer.kill()
        if code != -signal.SIGKILL:
            raise CampaignFailed(f"a consumer ended by itself with exit code {code}")
        self.kills[STAGES[self._stage[0]]] += 1

    def _finish(self, life: int) -> tuple[int, int]:
        """No more kills: the last consumer does what is left."""
        self._children["publisher"].signal(signal.SIGTERM)
        self._finish_child("the publisher", self._children["publisher"])
        published = int((self._folder / "count").read_text())
        consumer = Consumer(self._url, self._store, self._stage, life)
        self._finish_child("the last consumer", self._start("consumer", lambda: consumer.run(published)))

        def ask() -> int:
            with oncemq.connect(self._url) as client:
                (self._folder / "acked").write_text(str(client.subscriptions(TOPIC)[0].acked))
            return 0

        self._finish_child("asking", self._start("asking", ask))
        return published, int((self._folder / "acked").read_text())

    def _finish_child(self, name: str, child: Child) -> None:
        code = child.wait(4 * DEADLINE_S)
        if code != 0:
            raise CampaignFailed(f"{name} ended with exit code {code}")

    def _judge(self, published: int, acked: int, seconds: float) -> Evidence:
        numbers = self._store.ask("select number from effects order by place")
        problems = list(_differences(numbers, published))
        for what, found in (
            ("the total", self._store.ask("select counted from totals")),
            ("the position", self._store.ask("select position from oncemq_inbox")),
            ("the broker's position", [acked]),
        ):
            if found != [published]:
                problems.append(f"{what} is {found}, and not {published}")
        return Evidence(problems, dict(sorted(self.kills.items())), published, len(numbers), round(seconds, 1))


def _differences(numbers: list[int], published: int) -> Iterator[str]:
    counts = Counter(numbers)
    doubled = sorted(number for number, count in counts.items() if count > 1)
    missing = sorted(set(range(published)) - set(counts))
    if doubled:
        yield f"{len(doubled)} effects are doubled, such as {doubled[:5]}"
    if missing:
        yield f"{len(missing)} effects are missing, such as {missing[:5]}"
    if not doubled and not missing and numbers != list(range(published)):
        yield "effects are out of order, or nobody's"


@contextmanager
def _store(database: Database, folder: Path) -> Iterator[Store]:
    if database == "sqlite":
        yield Store(database, str(folder / "effects.db"))
        return
    with PostgresServer() as server, server.database() as dsn:
        yield Store(database, dsn)


def run(kills: int, database: Database, *, seed: int | None = None, keep: bool = False) -> Evidence:
    """A whole campaign. To be called in a process without threads and sockets: it forks."""
    folder = Path(tempfile.mkdtemp(prefix="oncemq-inbox-"))
    with _store(database, folder) as store:
        campaign = Campaign(folder, store, time.time_ns() if seed is None else seed)
        try:
            evidence = campaign.run(kills, Progress(kills))
        except CampaignFailed as failure:
            evidence = Evidence([str(failure)], dict(campaign.kills), 0, 0, 0.0)
    if evidence.problems:
        for log in folder.glob("*.log"):
            sys.stderr.write(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}\n")
        sys.stderr.write(f"Evidence is in {folder}.\n")
    elif not keep:
        shutil.rmtree(folder)
    return evidence


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill an inbox's consumer again and again, and count its effects.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", action="store_true", help="keep the folder even if all is well")
    arguments = parser.parse_args()
    evidence = run(arguments.kills, arguments.database, seed=arguments.seed, keep=arguments.keep)
    sys.stdout.write(json.dumps(msgspec.to_builtins(evidence), indent=2) + "\n")
    return 1 if evidence.problems else 0


if __name__ == "__main__":
    sys.exit(main())
