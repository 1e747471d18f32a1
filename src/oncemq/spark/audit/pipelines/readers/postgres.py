"""A PostgreSQL table. Its columns of identities are copied to a Parquet file, which Spark compares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql
from pyspark.sql import SparkSession

from oncemq.spark.audit.pipelines.identity import Identity
from oncemq.spark.audit.pipelines.readers.parquet_files import read_files
from oncemq.spark.audit.pipelines.targets import TargetContent
from oncemq.spark.targets.declarations import PostgresTarget
from oncemq.spark.targets.postgres.table import Connection, TargetTable, find_table, open_connection

_CHUNK = 50_000
#: Older tables have no column `content`.
_BATCHES = "select query, batch, to_jsonb(b) ->> 'content' from {} b where target = %s"


@contextmanager
def read_postgres(
    spark: SparkSession, target: PostgresTarget, query_id: str, identity: Identity | None, only_topic: str
) -> Iterator[TargetContent]:
    with open_connection(target.url) as connection, TemporaryDirectory(prefix="oncemq-audit-") as folder:
        table = find_table(connection, target.table)
        if table is None:
            yield TargetContent(rows=read_files(spark, folder, [], identity, only_topic), count=0, last_batch=-1)
            return
        # One snapshot, so that rows and micro-batches belong together.
        with connection.transaction():
            connection.execute("set transaction isolation level repeatable read read only")
            batches = _batches(connection, table)
            count = _count(connection, table)
            paths = [_copy(connection, table, identity, folder)] if identity is not None and count else []
        last, content = batches.get(query_id, (-1, b""))
        yield TargetContent(
            rows=read_files(spark, folder, paths, identity, only_topic),
            count=count,
            last_batch=last,
            records_empty_batches=True,
            contents={last: content} if content else {},
            has_other_writers=bool(batches.keys() - {query_id}),
        )


def _batches(connection: Connection, table: TargetTable) -> dict[str, tuple[int, bytes]]:
    """The last micro-batch of each query, and the digest of its content."""
    name = table.sibling("oncemq_batches")
    if connection.execute("select to_regclass(%s) is null", (name.as_string(),)).fetchone() == (True,):
        return {}
    found = connection.execute(sql.SQL(_BATCHES).format(name), (table.qualified_name,)).fetchall()
    return {query: (batch, bytes.fromhex((content or "\\x")[2:])) for query, batch, content in found if batch >= 0}


def _count(connection: Connection, table: TargetTable) -> int:
    found = connection.execute(sql.SQL("select count(*) from {}").format(table.identifier)).fetchone()
    return 0 if found is None else int(found[0])


def _copy(connection: Connection, table: TargetTable, identity: Identity, folder: str) -> str:
    """Copy the columns of identities, as text, to a file."""
    path = os.path.join(folder, "identities.parquet")
    names = identity.columns
    columns = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
    schema = pa.schema([(name, pa.string()) for name in names])
    query = sql.SQL("select {} from {}").format(columns, table.identifier)
    with psycopg.ServerCursor(connection, "oncemq_audit") as cursor, pq.ParquetWriter(path, schema) as writer:
        cursor.execute(query)
        while chunk := cursor.fetchmany(_CHUNK):
            arrays: list[Any] = [pa.array(column, pa.string()) for column in zip(*chunk, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return path
