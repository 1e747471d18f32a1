"""Writers driven as Spark drives them, without Spark: tasks that write, a driver that commits or aborts."""

from __future__ import annotations

import itertools
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.dataset
from deltalake import DeltaTable
from psycopg import sql
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import DataType, StructType

from oncemq.spark.sink.task import TaskIdentity
from oncemq.spark.targets.declarations import DeltaTarget, ParquetTarget, PostgresTarget
from oncemq.spark.targets.delta.sink import DeltaSink, DeltaWriter
from oncemq.spark.targets.delta.sink import prepare as prepare_delta
from oncemq.spark.targets.delta.table import open_table
from oncemq.spark.targets.files import parquet
from oncemq.spark.targets.files.disk import Disk
from oncemq.spark.targets.objects.location import resolve_settings
from oncemq.spark.targets.postgres.sink import PostgresWriter
from oncemq.spark.targets.postgres.sink import prepare as prepare_postgres
from oncemq.spark.targets.staging_writer import StagingWriter
from tests.spark.targets.s3_server import STORAGE, S3Server

QUERY = "0b2f4a86-9d0c-4a55-8f3e-2f3c8d1f7c11"
_attempts = itertools.count(1)

Message = WriterCommitMessage | None


def schema_of(**columns: str | DataType) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


def record_batches(numbers: Iterable[int], rows_per_batch: int = 3) -> Iterator[Any]:
    whole = list(numbers)
    for start in range(0, len(whole), rows_per_batch):
        part = whole[start : start + rows_per_batch]
        yield pa.record_batch({"number": pa.array(part, pa.int64()), "text": [f"text {each}" for each in part]})


def identity_of(batch: int, partition: int, query: str = QUERY) -> TaskIdentity:
    """Of an attempt of a task."""
    return TaskIdentity(query_id=query, batch_id=batch, partition=partition, attempt=f"{next(_attempts):032x}")


def write(
    writer: StagingWriter, batches: Iterable[Any], *, batch: int, partition: int = 0, query: str = QUERY
) -> Message:
    """One attempt of one task; the writer is pickled on its way to the worker, and so is its message back."""
    identity = identity_of(batch, partition, query)
    task: StagingWriter = pickle.loads(pickle.dumps(writer))
    task.identify = lambda: identity
    message: Message = pickle.loads(pickle.dumps(task.write(iter(batches))))
    return message


def write_all(
    writer: StagingWriter, partitions: Sequence[Iterable[int]], *, batch: int, query: str = QUERY
) -> list[Message]:
    return [
        write(writer, record_batches(numbers), batch=batch, partition=index, query=query)
        for index, numbers in enumerate(partitions)
    ]


SCHEMA = schema_of(number="long", text="string")


class Sink(ABC):
    """A target of one kind, and what a reader sees in it."""

    schema = SCHEMA
    target: Any

    @abstractmethod
    def writer(self) -> StagingWriter:
        """As `start` and Spark make it; for each step another one."""

    @abstractmethod
    def table(self) -> dict[str, list[Any]]:
        """All columns, as somebody reads them who knows nothing of OnceMQ."""

    @abstractmethod
    def leftovers(self) -> list[str]:
        """What is staged and was never published."""

    def numbers(self) -> list[int]:
        return sorted(self.table().get("number", []))

    def run(self, partitions: Sequence[Iterable[int]], *, batch: int, query: str = QUERY) -> list[Message]:
        """A batch without faults."""
        messages = write_all(self.writer(), partitions, batch=batch, query=query)
        self.writer().commit(messages, batch)
        return messages


class ParquetFolder(Sink):
    def __init__(self, folder: Path, partition_by: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.target = ParquetTarget(path=str(folder), partition_by=partition_by)
        self.disk = Disk()

    def writer(self) -> StagingWriter:
        options = parquet.prepare(self.target, self.schema, self.disk)
        return parquet.ParquetSink(options).streamWriter(self.schema, overwrite=False)

    def table(self) -> dict[str, list[Any]]:
        found = pyarrow.dataset.dataset(str(self.folder), format="parquet", partitioning="hive").to_table().to_pydict()
        assert isinstance(found, dict)
        return found

    def leftovers(self) -> list[str]:
        return [str(path) for path in self.folder.rglob("*.staged")]


class DeltaFolder(Sink):
    def __init__(self, folder: Path, partition_by: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.target = DeltaTarget(path=str(folder), partition_by=partition_by)

    def writer(self) -> StagingWriter:
        prepare_delta(self.target, self.schema)
        return DeltaWriter(self.target, self.schema)

    def table(self) -> dict[str, list[Any]]:
        if not DeltaTable.is_deltatable(str(self.folder)):
            return {}
        found = DeltaTable(str(self.folder)).to_pyarrow_table().to_pydict()
        assert isinstance(found, dict)
        return found

    def leftovers(self) -> list[str]:
        known = set()
        if DeltaTable.is_deltatable(str(self.folder)):
            known = {Path(uri).name for uri in DeltaTable(str(self.folder)).file_uris()}
        found = (path for path in self.folder.rglob("*.parquet") if path.parent.name != "_delta_log")
        return [path.name for path in found if path.name not in known]


class ParquetBucket(Sink):
    def __init__(self, server: S3Server, prefix: str, partition_by: tuple[str, ...] = ()) -> None:
        self._server, self._prefix = server, prefix
        self.target = ParquetTarget(path=f"s3://lake/{prefix}", partition_by=partition_by, storage=STORAGE)

    def writer(self) -> StagingWriter:
        options = parquet.prepare(self.target, self.schema)
        return parquet.ParquetSink(options).streamWriter(self.schema, overwrite=False)

    def table(self) -> dict[str, list[Any]]:
        return self._server.table(self._prefix)

    def leftovers(self) -> list[str]:
        return [name for name in self._server.names(self._prefix) if name.endswith(".staged")]


class DeltaBucket(Sink):
    def __init__(self, server: S3Server, prefix: str, partition_by: tuple[str, ...] = ()) -> None:
        self._server, self._prefix = server, prefix
        self.target = DeltaTarget(path=f"s3a://lake/{prefix}", partition_by=partition_by, storage=STORAGE)

    def writer(self) -> StagingWriter:
        return DeltaSink(prepare_delta(self.target, self.schema)).streamWriter(self.schema, overwrite=False)

    def table(self) -> dict[str, list[Any]]:
        table = open_table(f"s3://lake/{self._prefix}", resolve_settings(STORAGE))
        found: dict[str, list[Any]] = {} if table is None else table.to_pyarrow_table().to_pydict()
        return found

    def leftovers(self) -> list[str]:
        table = open_table(f"s3://lake/{self._prefix}", resolve_settings(STORAGE))
        known = "" if table is None else "\n".join(table.file_uris())
        return [name for name in self._server.names(self._prefix) if name.endswith(".parquet") and name not in known]


class PostgresRows(Sink):
    def __init__(self, url: str, table: str = "numbers") -> None:
        self.url = url
        self.name = table
        self.target = PostgresTarget(url=url, table=table, create=True)

    def writer(self) -> StagingWriter:
        prepare_postgres(self.target, self.schema)
        return PostgresWriter(self.target, self.schema)

    def table(self) -> dict[str, list[Any]]:
        with psycopg.connect(self.url) as connection:
            found = connection.execute(sql.SQL("select * from {}").format(sql.Identifier(*self.name.split("."))))
            assert found.description is not None
            rows = found.fetchall()
            return {column.name: [row[index] for row in rows] for index, column in enumerate(found.description)}

    def leftovers(self) -> list[str]:
        like = "oncemq\\_stage\\_%"
        with psycopg.connect(self.url) as connection:
            tables = connection.execute("select tablename from pg_tables where tablename like %s", (like,)).fetchall()
            noted = connection.execute("select stage from oncemq_stages").fetchall()
        return sorted({name for (name,) in [*tables, *noted]})
