"""A PostgreSQL table. Its columns of identities are copied to a Parquet file, which Spark compares."""

from __future__ import annotations

import os
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import SparkSession

from oncemq.spark.audit.pipelines.identity import Identity
from oncemq.spark.audit.pipelines.readers.parquet_files import read_files, write_texts
from oncemq.spark.audit.pipelines.targets import TargetContent
from oncemq.spark.targets.declarations import PostgresTarget
from oncemq.spark.targets.files.disk import Disk
from oncemq.spark.targets.files.folder import LocalFolder
from oncemq.spark.targets.postgres.table import Connection, TargetTable, find_table, open_connection

_CHUNK = 50_000
_FILE = "rows.parquet"
#: Older tables have no column `content`.
_BATCHES = "select query, batch, to_jsonb(b) ->> 'content' from {} b where target = %s"


def read_postgres(
    spark: SparkSession,
    target: PostgresTarget,
    query_id: str,
    identity: Identity | None,
    only_topic: str,
    scratch: str,
) -> TargetContent:
    folder = LocalFolder(scratch, Disk())
    with open_connection(target.url) as connection:
        table = find_table(connection, target.table)
        if table is None:
            rows = read_files(spark, folder, [], identity, only_topic, scratch)
            return TargetContent(rows=rows, count=0, last_batch=-1)
        # One snapshot, so that rows and micro-batches belong together.
        with connection.transaction():
            connection.execute("set transaction isolation level repeatable read read only")
            batches = _batches(connection, table)
            count = _count(connection, table)
            paths = [_copy(connection, table, identity, scratch)] if identity is not None and count else []
    last, content = batches.get(query_id, (-1, b""))
    return TargetContent(
        rows=read_files(spark, folder, paths, identity, only_topic, scratch),
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


def _copy(connection: Connection, table: TargetTable, identity: Identity, scratch: str) -> str:
    """Copy the columns of identities, as texts, to a file, and return its name."""
    names = identity.columns
    columns = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
    query = sql.SQL("select {} from {}").format(columns, table.identifier)
    with (
        psycopg.ServerCursor(connection, "oncemq_audit") as cursor,
        write_texts(os.path.join(scratch, _FILE), names) as writer,
    ):
        cursor.execute(query)
        while chunk := cursor.fetchmany(_CHUNK):
            arrays: list[Any] = [pa.array(column, pa.string()) for column in zip(*chunk, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=writer.schema))
    return _FILE
