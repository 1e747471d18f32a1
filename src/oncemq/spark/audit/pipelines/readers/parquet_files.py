"""The rows of Parquet files in a folder, on a disk or in an object store.

Spark reads files on a disk itself. It can't read an object store without a jar, so the columns of identities are copied
from there to a file of this machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from oncemq.spark.audit.pipelines.identity import Identity, columns_by_name
from oncemq.spark.targets.files.folder import Folder


def read_files(
    spark: SparkSession,
    folder: Folder,
    paths: Sequence[str],
    identity: Identity | None,
    only_topic: str,
    scratch: str,
) -> DataFrame | None:
    """The identities of the rows of these files. `scratch` is a folder for copies."""
    if identity is None:
        return None
    if not paths:
        return spark.createDataFrame([], "topic string, topic_id bigint, offset bigint")
    if "://" in folder.url:
        rows = spark.read.parquet(_copy(folder, paths, identity.columns, scratch))
    else:
        reader = spark.read.option("basePath", folder.url).option("mergeSchema", "true")
        rows = reader.parquet(*(os.path.join(folder.url, path) for path in paths))
    return rows.select(*identity.select(columns_by_name(rows.columns), only_topic))


def write_texts(path: str, names: Sequence[str]) -> pq.ParquetWriter:
    """A writer of a file whose columns are texts."""
    return pq.ParquetWriter(path, pa.schema([(name, pa.string()) for name in names]))


def _copy(folder: Folder, paths: Sequence[str], names: Sequence[str], scratch: str) -> str:
    target = os.path.join(scratch, "identities.parquet")
    with write_texts(target, names) as writer:
        for path in paths:
            with folder.open(path) as file:
                parquet = pq.ParquetFile(file)
                stored = [name for name in names if name in parquet.schema_arrow.names]
                for batch in parquet.iter_batches(columns=stored):
                    columns = [_texts(batch, name, path) for name in names]
                    writer.write_batch(pa.record_batch(columns, schema=writer.schema))
    return target


def _texts(batch: Any, name: str, path: str) -> Any:
    """A column as texts. A partition column is not in the file but in the names of its folders, `column=value/`."""
    if name in batch.schema.names:
        return batch.column(name).cast(pa.string())
    folders = dict(part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    value = unquote(folders[name]) if name in folders else None
    return pa.array([value] * batch.num_rows, pa.string())


def count_rows(folder: Folder, paths: Mapping[int, Sequence[str]]) -> dict[int, int]:
    """The number of rows of each micro-batch, from the ends of its files."""
    return {batch: sum(_rows_in(folder, path) for path in files) for batch, files in paths.items()}


def _rows_in(folder: Folder, path: str) -> int:
    with folder.open(path) as file:
        return int(pq.ParquetFile(file).metadata.num_rows)
