"""Archives made without Spark, by the writers of its sinks; and restores driven as Spark drives them."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from oncemq.spark.lake import data_source, job_progress, layout, restorer
from oncemq.spark.lake.plan import Plan
from oncemq.spark.options import sink_options
from oncemq.spark.sink import writers
from oncemq.spark.sink.task import TaskIdentity
from oncemq.spark.sink.writers import BatchWriter
from oncemq.spark.targets.files.file_writer import arrow_schema
from tests.spark.targets.sink_drivers import QUERY, DeltaFolder, ParquetFolder, Sink, write

KINDS = {
    "topic": StringType(),
    "topic_id": LongType(),
    "offset": LongType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": MapType(StringType(), BinaryType()),
    "timestamp": TimestampType(),
    "idempotency_key": StringType(),
    "schema_version": IntegerType(),
    "date": DateType(),
}
SCHEMA = StructType([StructField(name, KINDS[name]) for name in layout.COLUMNS])
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def row(topic: str, offset: int, *, topic_id: int = 7, time: datetime | None = None, **rest: Any) -> dict[str, Any]:
    """A message; one a minute, where nothing is said."""
    time = time or NOON + timedelta(minutes=offset)
    made = {"topic": topic, "topic_id": topic_id, "offset": offset, "key": None, "value": b"%d" % offset}
    made |= {"headers": None, "timestamp": time, "idempotency_key": f"{topic_id:x}-{offset}", "date": time.date()}
    return made | rest


def rows(topic: str, offsets: Iterable[int], **rest: Any) -> list[dict[str, Any]]:
    return [row(topic, offset, **rest) for offset in offsets]


def add(folder: Path, batch: int, made: list[dict[str, Any]], *, kind: str = "parquet", query: str = QUERY) -> None:
    """A micro-batch of an archive."""
    add_to({"parquet": ParquetFolder, "delta": DeltaFolder}[kind](folder, layout.PARTITION_BY), batch, made, query)


def add_to(sink: Sink, batch: int, made: list[dict[str, Any]], query: str = QUERY) -> None:
    sink.schema = SCHEMA
    batches = [pa.RecordBatch.from_pylist(made, schema=arrow_schema(SCHEMA))]
    message = write(sink.writer(), batches, batch=batch, query=query)
    sink.writer().commit([message], batch)


def seen(folder: Path, kind: str) -> list[tuple[str, int]]:
    """What a reader sees that knows nothing of OnceMQ: (topic, offset), in order."""
    if kind == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(str(folder)).to_pyarrow_table()
    else:
        import pyarrow.dataset as ds

        columns = pa.schema([("topic", pa.string()), ("date", pa.date32())])
        table = ds.dataset(folder, partitioning=ds.partitioning(columns, flavor="hive")).to_table()
    return sorted(zip(table["topic"].to_pylist(), table["offset"].to_pylist(), strict=True))


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores whose tasks run here, one after the other, each with pickled copies of its reader and writer."""

    def save(_: Any, plan: str, options: Mapping[str, str]) -> None:
        reader = data_source.LakeReader(msgspec.json.decode(Path(plan).read_bytes(), type=Plan))
        chosen = sink_options(options, is_stream=False)
        written: list[WriterCommitMessage | None] = []
        for number, partition in enumerate(reader.partitions()):
            identity = TaskIdentity(query_id="", batch_id=0, partition=number, attempt=uuid.uuid4().hex)
            monkeypatch.setattr(writers, "task_identity", lambda identity=identity: identity)
            task = pickle.loads(pickle.dumps(reader))
            batches = task.read(pickle.loads(pickle.dumps(partition)))
            written.append(BatchWriter(chosen, data_source.ROWS, overwrite=False).write(batches))
        # In whatever order they come.
        BatchWriter(chosen, data_source.ROWS, overwrite=False).commit(written[::-1])

    monkeypatch.setattr(restorer, "_save", save)
    monkeypatch.setattr(restorer, "session_for", lambda *_: nullcontext())
    monkeypatch.setattr(job_progress, "report_progress", lambda *_: nullcontext())
