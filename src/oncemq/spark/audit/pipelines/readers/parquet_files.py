"""The rows of Parquet files, with their numbers by file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from oncemq.spark.audit.pipelines.identity import Identity, columns_by_name


def read_files(
    spark: SparkSession, root: str, paths: Sequence[str], identity: Identity | None, only_topic: str
) -> DataFrame | None:
    """The identities of the rows of these files. Columns in the names of folders (`column=value/`) are included."""
    if identity is None:
        return None
    if not paths:
        return spark.createDataFrame([], "topic string, topic_id bigint, offset bigint")
    rows = spark.read.option("basePath", root).option("mergeSchema", "true").parquet(*paths)
    return rows.select(*identity.select(columns_by_name(rows.columns), only_topic))


def count_rows(paths: Mapping[int, Sequence[str]]) -> dict[int, int]:
    """The number of rows of each micro-batch, from the ends of its files."""
    return {batch: sum(_rows_in(path) for path in files) for batch, files in paths.items()}


def _rows_in(path: str) -> int:
    metadata: Any = pq.read_metadata(path)
    return int(metadata.num_rows)
