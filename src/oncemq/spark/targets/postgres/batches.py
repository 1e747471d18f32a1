"""Batches in PostgreSQL: tasks stage rows, and the driver publishes them in one transaction.

    oncemq_batches           the last batch of each (query, table), and a digest of its content
    oncemq_stages            the stages: the query, the batch and the number of rows of each
    oncemq_stage_ATTEMPT     the rows of one attempt of a task, an unlogged table

Each attempt has its own table. So the transaction reads only the rows of its batch, a stage is deleted with DROP and
leaves nothing to vacuum, and `oncemq_stages` says to whom an abandoned stage belongs. A shared table would grow with
all rows between two vacuums, and each batch would read all of them.

All tables are in the schema of the target table. A crash of the database empties unlogged tables. That is detected by
the number of rows, and the batch is replayed. READ COMMITTED is sufficient: the row in `oncemq_batches` serializes two
drivers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql

from oncemq.protocol import errors
from oncemq.spark.checkpoint.content import refuse_other_content
from oncemq.spark.sink.task import TaskIdentity
from oncemq.spark.targets.postgres.copy_text import copy_text
from oncemq.spark.targets.postgres.refused_rows import explain_refused_rows
from oncemq.spark.targets.postgres.table import Column, Connection, TargetTable, alter_table, create_if_missing

_log = logging.getLogger(__name__)

#: An older stage of another query was abandoned by a crash.
STAGE_AGE_MAX = "7 days"

_CREATE_BATCHES = """
create table if not exists {} (query text not null, target text not null, batch bigint not null, content bytea,
    primary key (query, target))
"""
_HAS_CONTENT = """
select exists (select from pg_attribute where attrelid = to_regclass(%s) and attname = 'content' and not attisdropped)
"""
_ADD_CONTENT = "alter table {} add column if not exists content bytea"
_CREATE_STAGES = """
create table if not exists {} (stage text primary key, query text not null, target text not null,
    batch bigint not null, rows bigint not null, staged_at timestamptz not null default now())
"""
_CREATE_STAGE = "create unlogged table {} as select {} from {} with no data"
_INSERT_STAGE = "insert into {} (stage, query, target, batch, rows) values (%s, %s, %s, %s, %s)"
_COPY = "copy {} ({}) from stdin"
_FIRST_BATCH = "insert into {} (query, target, batch) values (%s, %s, -1) on conflict do nothing"
_LAST_BATCH = "select batch, content from {} where query = %s and target = %s for update"
_NEXT_BATCH = "update {} set batch = %s, content = %s where query = %s and target = %s"
_INSERT = "insert into {} ({}) select {} from {}"
_OLD_STAGES = """
select stage from {} where target = %s and ((query = %s and batch <= %s) or staged_at < now() - {}::interval)
"""
#: A backup that reads the stage must not block the stream: a later commit deletes the stage.
_LOCK_TIMEOUT = "set local lock_timeout = '500ms'"


class PostgresBatches:
    """The batches of one table, on one connection in autocommit mode."""

    def __init__(self, connection: Connection, table: TargetTable, columns: Sequence[Column]) -> None:
        self._connection = connection
        self._table = table
        self._names = [column.name for column in columns]
        self._columns = sql.SQL(", ").join(map(sql.Identifier, self._names))
        self._batches = table.sibling("oncemq_batches")
        self._stages = table.sibling("oncemq_stages")

    def create_tables(self) -> None:
        """Create the tables that do not exist. A user without the right to create tables can use existing ones."""
        for name, command in ((self._batches, _CREATE_BATCHES), (self._stages, _CREATE_STAGES)):
            text = name.as_string()
            if self._run("select to_regclass(%s) is null", text).fetchone() == (True,):
                create_if_missing(self._connection, sql.SQL(command).format(name))
        self._add_content()

    def _add_content(self) -> None:
        """Add the column to a table of an earlier version. Raises SettingInvalid if the user may not do that."""
        name = self._batches.as_string()
        if self._run(_HAS_CONTENT, name).fetchone() != (True,):
            alter_table(self._connection, name, sql.SQL(_ADD_CONTENT).format(self._batches))

    # Called in a task.

    def stage(self, identity: TaskIdentity, batches: Iterable[Any]) -> int:
        """Stage all rows or none, and return their number. Without rows, no stage is created."""
        with explain_refused_rows(self._table.qualified_name), self._connection.transaction():
            rows = self._copy(identity, (batch.select(self._names) for batch in batches if batch.num_rows))
            if rows:
                insert = sql.SQL(_INSERT_STAGE).format(self._stages)
                name, target = _stage_name(identity.attempt), self._table.qualified_name
                self._run(insert, name, identity.query_id, target, identity.batch_id, rows)
        return rows

    def _copy(self, identity: TaskIdentity, batches: Iterable[Any]) -> int:
        first = next(iterator := iter(batches), None)
        if first is None:
            return 0
        stage = self._table.sibling(_stage_name(identity.attempt))
        self._run(sql.SQL(_CREATE_STAGE).format(stage, self._columns, self._table.identifier))
        with self._connection.cursor() as cursor:
            with cursor.copy(sql.SQL(_COPY).format(stage, self._columns)) as copy:
                copy.write(copy_text(first))
                for batch in iterator:
                    copy.write(copy_text(batch))
            return cursor.rowcount

    # Called on the driver.

    def publish(self, query_id: str, batch_id: int, stages: Sequence[tuple[str, int]], content: bytes) -> None:
        """Publish the stages, each an attempt and its number of rows, in one transaction. Do nothing if the batch was
        published before. Raises BatchChanged if it was published with other content, and OnceMQError if staged rows are
        missing."""
        name = self._table.qualified_name
        with explain_refused_rows(name), self._connection.transaction():
            self._require_durable_commit()
            last, known = self._last_batch(query_id)
            if last < batch_id:
                for attempt, rows in stages:
                    self._insert(attempt, rows)
                next_batch = sql.SQL(_NEXT_BATCH).format(self._batches)
                self._run(next_batch, batch_id, content or None, query_id, name)
            else:
                is_same = not (content and known) or (last == batch_id and known == content)
                refuse_other_content(f"the table {name}", batch_id, last, is_same=is_same)
        self._drop_old_stages(query_id, batch_id)

    def discard(self, attempts: Iterable[str]) -> None:
        """Delete the stages of these attempts. Published rows are in the table itself, and stay."""
        for attempt in attempts:
            self._drop(_stage_name(attempt))

    def _require_durable_commit(self) -> None:
        """Spark does not replay a committed batch, so a commit that a crash undoes would lose it."""
        if self._run("show synchronous_commit").fetchone() == ("off",):
            self._run("set local synchronous_commit = on")

    def _last_batch(self, query_id: str) -> tuple[int, bytes]:
        """The last batch of the query, and its content. Locks its row, so that no other driver publishes until the
        transaction ends."""
        key = (query_id, self._table.qualified_name)
        self._run(sql.SQL(_FIRST_BATCH).format(self._batches), *key)
        found = self._run(sql.SQL(_LAST_BATCH).format(self._batches), *key).fetchone()
        assert found is not None
        return int(found[0]), bytes(found[1] or b"")

    def _insert(self, attempt: str, rows: int) -> None:
        if not rows:
            return
        name = self._table.qualified_name
        stage = self._table.sibling(_stage_name(attempt))
        try:
            insert = sql.SQL(_INSERT).format(self._table.identifier, self._columns, self._columns, stage)
            stored = self._run(insert).rowcount
        except psycopg.errors.UndefinedTable:
            raise errors.OnceMQError(
                f"the stage of {name} does not exist any more; start the query again to replay the batch"
            ) from None
        # A trigger of the table may skip rows. That is no error.
        if stored != rows and self._count(stage) != rows:
            raise errors.OnceMQError(
                f"some of the {rows} rows that were staged for {name} are missing, because the database crashed in the"
                " meantime; start the query again to replay the batch"
            )

    def _count(self, stage: sql.Identifier) -> int:
        found = self._run(sql.SQL("select count(*) from {}").format(stage)).fetchone()
        return 0 if found is None else int(found[0])

    def _drop_old_stages(self, query_id: str, batch_id: int) -> None:
        """Delete the stages of this batch, of earlier ones and of crashed queries. The batch is committed already, so
        errors are only logged."""
        try:
            query = sql.SQL(_OLD_STAGES).format(self._stages, sql.Literal(STAGE_AGE_MAX))
            for (name,) in self._run(query, self._table.qualified_name, query_id, batch_id).fetchall():
                self._drop(name)
        except psycopg.Error as error:
            _log.warning("a later commit will delete the stages of %s: %s", self._table.qualified_name, error)

    def _drop(self, name: str) -> None:
        try:
            with self._connection.transaction():
                self._run(_LOCK_TIMEOUT)
                self._run(sql.SQL("drop table if exists {}").format(self._table.sibling(name)))
                self._run(sql.SQL("delete from {} where stage = %s").format(self._stages), name)
        except psycopg.errors.LockNotAvailable:
            _log.info("the stage %s is in use; a later commit will delete it", name)

    def _run(self, command: str | sql.SQL | sql.Composed, *parameters: Any) -> psycopg.Cursor[Any]:
        return self._connection.execute(command, parameters or None)


def _stage_name(attempt: str) -> str:
    return f"oncemq_stage_{attempt}"
