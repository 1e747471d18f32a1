"""Real streams into real targets: a commit that fails, a commit log that lost its last entry, and every row once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable

from oncemq.protocol import errors
from oncemq.spark.broker import Broker
from oncemq.spark.targets import start as sinks
from oncemq.spark.targets.declarations import (
    ConsoleTarget,
    DeltaTarget,
    ParquetTarget,
    PostgresTarget,
    Target,
    TopicTarget,
)
from tests.spark.targets.sink_drivers import DeltaFolder, ParquetFolder, PostgresRows, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "number long, text string, at timestamp, headers map<string,string>"


class Stream:
    """One file of rows is one batch."""

    def __init__(self, spark: SparkSession, folder: Path, target: Target) -> None:
        self._spark, self._target = spark, target
        self._rows, self._checkpoint = folder / "rows", folder / "checkpoint"
        self._rows.mkdir()

    def add(self, numbers: range) -> None:
        lines = [
            {"number": n, "text": f"t{n}", "at": "2026-01-02T03:04:05Z", "headers": {"n": str(n)}} for n in numbers
        ]
        # The order of the files is that of their names, when they are equally old.
        (self._rows / f"{numbers.start:08d}.json").write_text("\n".join(map(json.dumps, lines)))

    def frame(self) -> DataFrame:
        reader = self._spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        return reader.json(str(self._rows)).repartition(2)

    def run(self) -> None:
        query = sinks.start(
            self.frame(),
            self._target,
            checkpoint=str(self._checkpoint),
            trigger={"availableNow": True},
            name="",
            broker=Broker(),
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def forget_the_last_commit(self) -> None:
        """As after a crash between the sink's commit and Spark's."""
        commits = self._checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        assert last == 2
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink()


def run_with_faults(stream: Stream, sink: Sink, *, break_it: Callable[[], Any], mend_it: Callable[[], Any]) -> None:
    stream.add(range(10))
    stream.run()
    assert sink.numbers() == list(range(10))
    break_it()
    stream.add(range(10, 20))
    with pytest.raises(Exception, match=r"(?s)oncemq.*commit"):
        stream.run()
    mend_it()
    stream.add(range(20, 30))
    stream.run()
    assert sink.numbers() == list(range(30))
    stream.forget_the_last_commit()
    stream.run()
    assert sink.numbers() == list(range(30))


def test_a_stream_into_a_folder_of_parquet_files_is_exact(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetFolder(tmp_path / "target")
    stream = Stream(spark, tmp_path, ParquetTarget(path=str(sink.folder)))

    def state() -> Path:
        (folder,) = (sink.folder / "_oncemq").glob("*/")
        return folder / "last.json.fresh"

    # The commit fails when all files are published, just before it would remember the batch.
    run_with_faults(stream, sink, break_it=lambda: state().mkdir(), mend_it=lambda: state().rmdir())
    read = spark.read.parquet(str(sink.folder))
    assert read.schema == stream.frame().schema
    assert read.where("headers['n'] = number and text = concat('t', number)").count() == 30


def test_a_stream_into_a_delta_table_is_exact(spark: SparkSession, tmp_path: Path) -> None:
    sink = DeltaFolder(tmp_path / "target", ("text",))
    stream = Stream(spark, tmp_path, DeltaTarget(path=str(sink.folder), partition_by=("text",)))

    def break_it() -> None:
        # deltalake finds no room for the next version, though the table as it is can be read.
        (sink.folder / "_delta_log" / f"{1:020d}.json").symlink_to("nowhere/to/be/found")

    def mend_it() -> None:
        (sink.folder / "_delta_log" / f"{1:020d}.json").unlink()

    run_with_faults(stream, sink, break_it=break_it, mend_it=mend_it)
    found = sink.table()
    assert sorted(found["text"]) == sorted(f"t{number}" for number in range(30))
    assert DeltaTable(str(sink.folder)).version() == 2


def test_a_stream_into_a_postgres_table_is_exact(spark: SparkSession, tmp_path: Path, oncemq_postgres: str) -> None:
    sink = PostgresRows(oncemq_postgres, "target")
    stream = Stream(spark, tmp_path, PostgresTarget(url=oncemq_postgres, table="target", create=True))

    def execute(command: str) -> None:
        with psycopg.connect(oncemq_postgres, autocommit=True) as connection:
            connection.execute(command)

    run_with_faults(
        stream,
        sink,
        break_it=lambda: execute("alter table target add constraint small check (number < 15)"),
        mend_it=lambda: execute("alter table target drop constraint small"),
    )
    found = sink.table()
    assert [headers["n"] for headers in found["headers"]] == [str(number) for number in found["number"]]
    assert {at.isoformat() for at in found["at"]} == {"2026-01-02T03:04:05+00:00"}


def test_a_target_that_can_not_work_is_an_error_before_the_query_starts(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, ParquetTarget(path=str(tmp_path / "target"), partition_by=("nothing",)))
    with pytest.raises(errors.SettingInvalid, match="no column 'nothing'"):
        stream.run()


class Recorder:
    """What a DataFrame and its writer are told."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.writeStream = self
        self.sparkSession = None

    def format(self, name: str) -> Recorder:
        self.told["format"] = name
        return self

    def option(self, name: str, value: Any) -> Recorder:
        return self.options(**{name: value})

    def options(self, **options: Any) -> Recorder:
        self.told |= options
        return self

    def trigger(self, **trigger: Any) -> Recorder:
        self.told["trigger"] = trigger
        return self

    def outputMode(self, mode: str) -> Recorder:  # noqa: N802
        self.told["output"] = mode
        return self

    def queryName(self, name: str) -> Recorder:  # noqa: N802
        self.told["name"] = name
        return self

    def start(self) -> Recorder:
        return self


BROKER = {"url": "tcp://b:1", "timeout": "30s"}


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (TopicTarget(topic="t"), {"format": "oncemq", **BROKER, "topic": "t", "create": "false"}),
        (TopicTarget(create=True), {"format": "oncemq", **BROKER, "create": "true"}),
        (ConsoleTarget(rows=5), {"format": "console", "numRows": 5, "truncate": False}),
    ],
)
def test_topics_and_the_console_get_what_the_target_says(target: Target, told: dict[str, Any]) -> None:
    stream: Any = Recorder()
    sinks.start(
        stream,
        target,
        checkpoint="/c",
        trigger={"processingTime": "1 second"},
        name="q",
        broker=Broker(url="tcp://b:1"),
    )
    common = {"checkpointLocation": "/c", "trigger": {"processingTime": "1 second"}, "name": "q", "output": "append"}
    assert stream.told == told | common
