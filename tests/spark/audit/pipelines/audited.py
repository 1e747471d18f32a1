"""Pipelines that have run, and faults that are planted into their checkpoints and targets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from oncemq.client.sync import Client
from oncemq.spark.audit.pipelines import PipelineReport, audit_pipelines
from oncemq.spark.audit.pipelines.auditor import AuditedPipeline
from oncemq.spark.audit.pipelines.report import PipelineResult
from oncemq.spark.broker import Broker
from oncemq.spark.pipeline import Pipeline, Source, Transform, Value, start
from oncemq.spark.targets.declarations import DeltaTarget, ParquetTarget, PostgresTarget, Target, TopicTarget

TOPIC = "orders"
MESSAGES = 25


def put_orders(client: Client, first: int, stop: int) -> None:
    client.put_many(TOPIC, [json.dumps({"id": number, "price": number / 2}) for number in range(first, stop)])


def pipeline(folder: Path, name: str, target: Target, sql: str = "SELECT * FROM messages") -> Pipeline:
    return Pipeline(
        name=name,
        source=Source(topic=TOPIC, max_per_trigger=10, columns=("offset",)),
        value=Value(format="json", schema="id bigint, price double"),
        transform=Transform(sql=sql),
        target=target,
        checkpoint=str(folder / "checkpoints" / name),
    )


def targets(folder: Path, postgres: str) -> dict[str, Target]:
    return {
        "topic": TopicTarget(topic="audited", create=True),
        "parquet": ParquetTarget(path=str(folder / "parquet")),
        "delta": DeltaTarget(path=str(folder / "delta")),
        "postgres": PostgresTarget(url=postgres, table="audited", create=True),
    }


def run_all(spark: SparkSession, url: str, pipelines: list[Pipeline]) -> None:
    """Run them at the same time."""
    for handle in [start(each, url=url, session=spark) for each in pipelines]:
        handle.wait()


def audit(spark: SparkSession, url: str, *pipelines: Pipeline) -> PipelineReport:
    return audit_pipelines(spark, Broker(url=url), [AuditedPipeline(each) for each in pipelines])


def audit_one(spark: SparkSession, url: str, each: Pipeline) -> PipelineResult:
    (result,) = audit(spark, url, each).pipelines
    return result


# Checkpoints.


def forget_entry(each: Pipeline, folder: str, number: int) -> None:
    path = Path(each.checkpoint) / folder
    (path / str(number)).unlink()
    (path / f".{number}.crc").unlink(missing_ok=True)


def change_end(each: Pipeline, number: int, end: int) -> None:
    """The checkpoint says that a micro-batch ended elsewhere."""
    path = Path(each.checkpoint) / "offsets" / str(number)
    *head, line = path.read_text().splitlines()
    offsets = json.loads(line)
    offsets["topics"][TOPIC][1] = end
    path.write_text("\n".join([*head, json.dumps(offsets)]))


def add_batch(each: Pipeline, number: int, end: int) -> None:
    """The checkpoint says that a further micro-batch is complete."""
    for folder in ("offsets", "commits"):
        path = Path(each.checkpoint) / folder
        shutil.copy(path / str(number - 1), path / str(number))
    change_end(each, number, end)


def with_copied_checkpoint(each: Pipeline) -> Pipeline:
    copy = f"{each.checkpoint}-copy"
    shutil.copytree(each.checkpoint, copy)
    return msgspec.structs.replace(each, checkpoint=copy)


# Targets.


def parquet_files(each: Pipeline) -> list[Path]:
    assert isinstance(each.target, ParquetTarget)
    return sorted(Path(each.target.path).glob("part-*.parquet"))


def remove_row(path: Path, row: int) -> None:
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table.slice(0, row), table.slice(row + 1)]), path)


def delta_file_of_batch(each: Pipeline, batch: int) -> Path:
    assert isinstance(each.target, DeltaTarget)
    folder = Path(each.target.path)
    actions = [json.loads(line) for line in (folder / "_delta_log" / f"{batch:020d}.json").read_text().splitlines()]
    (path,) = [action["add"]["path"] for action in actions if "add" in action]
    return folder / str(path)


def double_first_rows(each: Pipeline, rows: int) -> None:
    assert isinstance(each.target, DeltaTarget)
    table = DeltaTable(each.target.path).to_pyarrow_table()
    write_deltalake(each.target.path, table.sort_by("id").slice(0, rows), mode="append")


def forget_log(each: Pipeline, entries: int) -> None:
    """As a table that is older than the retention of its log: a checkpoint of the table replaces the first entries."""
    assert isinstance(each.target, DeltaTarget)
    DeltaTable(each.target.path).create_checkpoint()
    for number in range(entries):
        Path(each.target.path, "_delta_log", f"{number:020d}.json").unlink()


def execute(each: Pipeline, command: str) -> None:
    assert isinstance(each.target, PostgresTarget)
    with psycopg.connect(each.target.url, autocommit=True) as connection:
        connection.execute(command)
