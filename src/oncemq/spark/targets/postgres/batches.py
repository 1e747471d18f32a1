"""Batches in PostgreSQL: staged by tasks, published by the driver in one transaction.

    oncemq_batches           the last batch of each (query, table)
    oncemq_stages            what is staged: by which query, for which batch, how many rows
    oncemq_stage_ATTEMPT     the rows of one attempt of a task, unlogged

Each attempt has a table of its own: the transaction reads the rows of its batch and no others, a stage goes by DROP
and leaves nothing to vacuum, and one that is left behind says in `oncemq_stages` whose it was. A shared table would
grow with what passes through it between two vacuums, and each batch would read all of that.

All are in the schema of the table that is written. A crash of the database empties unlogged tables; the count of
rows tells, and the batch is replayed. READ COMMITTED is enough: two drivers meet at the row of `oncemq_batches`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql

from oncemq.protocol import errors
from oncemq.spark.sink.task import TaskIdentity
from oncemq.spark.targets.postgres.copy_text import copy_text
from oncemq.spark.targets.postgres.table import Column, Connection, Place, make

_log = logging.getLogger(__name__)

#: A stage of another query that is older was left behind by a crash.
STAGE_AGE_MAX = "7 days"

_MAKE_BATCHES = """
create table if not exists {} (query text not null, target text not null, batch bigint not null,
    primary key (query, target))
"""
_MAKE_STAGES = """
create table if not exists {} (stage text primary key, query text not null, target text not null,
    batch bigint not null, rows bigint not null, staged_at timestamptz not null default now())
"""
_MAKE_STAGE = "create unlogged table {} as select {} from {} with no data"
_NOTE_STAGE = "insert into {} (stage, query, target, batch, rows) values (%s, %s, %s, %s, %s)"
_COPY = "copy {} ({}) from stdin"
_FIRST_BATCH = "insert into {} (query, target, batch) values (%s, %s, -1) on conflict do nothing"
_LAST_BATCH = "select batch from {} where query = %s and target = %s for update"
_NEXT_BATCH = "update {} set batch = %s where query = %s and target = %s"
_INSERT = "insert into {} ({}) select {} from {}"
_LEFT_BEHIND = """
select stage from {} where target = %s and ((query = %s and batch <= %s) or staged_at < now() - {}::interval)
"""
#: A backup that reads the stage must not hold up the stream: it goes at a later commit.
_DROP_WAIT = "set local lock_timeout = '500ms'"


class PostgresBatches:
    """One table's batches, on one connection in autocommit mode."""

    def __init__(self, connection: Connection, place: Place, columns: Sequence[Column]) -> None:
        self._connection = connection
        self._place = place
        self._names = [column.name for column in columns]
        self._columns = sql.SQL(", ").join(map(sql.Identifier, self._names))
        self._batches = place.beside("oncemq_batches")
        self._stages = place.beside("oncemq_stages")

    def make_tables(self) -> None:
        """Look first: one who may not create tables may still use those that exist."""
        for name, command in ((self._batches, _MAKE_BATCHES), (self._stages, _MAKE_STAGES)):
            text = name.as_string()
            if self._run("select to_regclass(%s) is null", text).fetchone() == (True,):
                make(self._connection, sql.SQL(command).format(name))

    # A task.

    def stage(self, identity: TaskIdentity, batches: Iterable[Any]) -> int:
        """All rows or none; how many. No rows need no stage."""
        with self._connection.transaction():
            rows = self._copy(identity, (batch.select(self._names) for batch in batches if batch.num_rows))
            if rows:
                note = sql.SQL(_NOTE_STAGE).format(self._stages)
                name, key = _stage_name(identity.attempt), self._place.key
                self._run(note, name, identity.query_id, key, identity.batch_id, rows)
        return rows

    def _copy(self, identity: TaskIdentity, batches: Iterable[Any]) -> int:
        first = next(iterator := iter(batches), None)
        if first is None:
            return 0
        stage = self._place.beside(_stage_name(identity.attempt))
        self._run(sql.SQL(_MAKE_STAGE).format(stage, self._columns, self._place.name))
        with self._connection.cursor() as cursor:
            with cursor.copy(sql.SQL(_COPY).format(stage, self._columns)) as copy:
                copy.write(copy_text(first))
                for batch in iterator:
                    copy.write(copy_text(batch))
            return cursor.rowcount

    # The driver.

    def publish(self, query_id: str, batch_id: int, stages: Sequence[tuple[str, int]]) -> None:
        """Attempts and their rows, in one transaction, unless the batch is there."""
        with self._connection.transaction():
            self._store_for_good()
            if self._last(query_id) < batch_id:
                for attempt, rows in stages:
                    self._insert(attempt, rows)
                self._run(sql.SQL(_NEXT_BATCH).format(self._batches), batch_id, query_id, self._place.key)
        self._clean(query_id, batch_id)

    def drop(self, attempts: Iterable[str]) -> None:
        """What is published is in the table itself, and stays."""
        for attempt in attempts:
            self._drop(_stage_name(attempt))

    def _store_for_good(self) -> None:
        """Spark forgets the batch when it is committed, so that a commit which a crash undoes would lose it."""
        if self._run("show synchronous_commit").fetchone() == ("off",):
            self._run("set local synchronous_commit = on")

    def _last(self, query_id: str) -> int:
        """Nobody else publishes a batch of this query before our transaction ends."""
        self._run(sql.SQL(_FIRST_BATCH).format(self._batches), query_id, self._place.key)
        found = self._run(sql.SQL(_LAST_BATCH).format(self._batches), query_id, self._place.key).fetchone()
        assert found is not None
        return int(found[0])

    def _insert(self, attempt: str, rows: int) -> None:
        if not rows:
            return
        stage = self._place.beside(_stage_name(attempt))
        try:
            insert = sql.SQL(_INSERT).format(self._place.name, self._columns, self._columns, stage)
            stored = self._run(insert).rowcount
        except psycopg.errors.UndefinedTable:
            raise errors.OnceMQError(f"what was staged for {self._place.key} is gone; start the query again") from None
        # A trigger of the table may have left rows out, which is its business.
        if stored != rows and self._count(stage) != rows:
            raise errors.OnceMQError(
                f"of {rows} rows that were staged for {self._place.key} some are gone: the database crashed in"
                " between; start the query again, and it replays the batch"
            )

    def _count(self, stage: sql.Identifier) -> int:
        found = self._run(sql.SQL("select count(*) from {}").format(stage)).fetchone()
        return 0 if found is None else int(found[0])

    def _clean(self, query_id: str, batch_id: int) -> None:
        """What was staged for this batch and before, and what crashes left behind. The batch is stored already."""
        try:
            query = sql.SQL(_LEFT_BEHIND).format(self._stages, sql.Literal(STAGE_AGE_MAX))
            for (name,) in self._run(query, self._place.key, query_id, batch_id).fetchall():
                self._drop(name)
        except psycopg.Error as error:
            _log.warning("stages of %s stay for a later commit: %s", self._place.key, error)

    def _drop(self, name: str) -> None:
        try:
            with self._connection.transaction():
                self._run(_DROP_WAIT)
                self._run(sql.SQL("drop table if exists {}").format(self._place.beside(name)))
                self._run(sql.SQL("delete from {} where stage = %s").format(self._stages), name)
        except psycopg.errors.LockNotAvailable:
            _log.info("the stage %s is in use, and stays for a later commit", name)

    def _run(self, command: str | sql.SQL | sql.Composed, *parameters: Any) -> psycopg.Cursor[Any]:
        return self._connection.execute(command, parameters or None)


def _stage_name(attempt: str) -> str:
    return f"oncemq_stage_{attempt}"
