"""A folder of Parquet files. The name of a file has the query, the micro-batch and the number of the file in it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from pyspark.sql import SparkSession

from oncemq.spark.audit.pipelines.identity import Identity
from oncemq.spark.audit.pipelines.readers.parquet_files import count_rows, read_files
from oncemq.spark.audit.pipelines.targets import TargetContent
from oncemq.spark.targets.declarations import ParquetTarget
from oncemq.spark.targets.files.commit_log import LastBatch
from oncemq.spark.targets.files.disk import Disk
from oncemq.spark.targets.files.folder import Folder, visible_files
from oncemq.spark.targets.open_folder import open_folder

_NAME = re.compile(r"part-(?P<query>[0-9a-f-]{36})-(?P<batch>\d{8,})-(?P<index>\d{5,})\.parquet")


class _File(msgspec.Struct, frozen=True):
    path: str
    batch: int
    index: int


def read_parquet(
    spark: SparkSession,
    target: ParquetTarget,
    query_id: str,
    identity: Identity | None,
    only_topic: str,
    scratch: str,
) -> TargetContent:
    folder = open_folder(target.path, target.storage, Disk())
    files, others = _files(folder, query_id)
    by_batch: dict[int, list[_File]] = {}
    for file in files:
        by_batch.setdefault(file.batch, []).append(file)
    last = _last_batch(folder, query_id)
    rows_by_batch = count_rows(folder, {batch: [file.path for file in found] for batch, found in by_batch.items()})
    return TargetContent(
        rows=read_files(spark, folder, [file.path for file in files], identity, only_topic, scratch),
        count=sum(rows_by_batch.values()),
        last_batch=last.batch,
        contents={last.batch: bytes.fromhex(last.content)},
        rows_by_batch=rows_by_batch,
        missing_files=tuple(_missing(by_batch)),
        has_other_writers=others > 0,
        remarks=(f"{others} files of other writers",) if others else (),
    )


def _files(folder: Folder, query_id: str) -> tuple[list[_File], int]:
    """The published files of the query, and the number of those of others."""
    found, others = [], 0
    for file in visible_files(folder):
        match = _NAME.fullmatch(file.path.rpartition("/")[2])
        if match is not None and match["query"] == query_id:
            found.append(_File(file.path, int(match["batch"]), int(match["index"])))
        else:
            others += 1
    return found, others


def _missing(by_batch: dict[int, list[_File]]) -> Iterator[str]:
    """The files of a micro-batch are numbered from 0, so a gap shows that one is missing."""
    for batch, files in sorted(by_batch.items()):
        numbers = {file.index for file in files}
        for index in sorted(set(range(max(numbers))) - numbers):
            yield f"file {index} of micro-batch {batch}"


def _last_batch(folder: Folder, query_id: str) -> LastBatch:
    data = folder.read(f"_oncemq/{query_id}/last.json")
    return LastBatch(-1) if data is None else msgspec.json.decode(data, type=LastBatch)
