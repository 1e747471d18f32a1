"""Reads a folder of record files (client/recording/records.py, docs/audit.md) into one DataFrame of lines."""

from __future__ import annotations

import os
from glob import escape, glob

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from oncemq.protocol import errors

_SCHEMA = """
    kind string, seq bigint, at_ms bigint, version bigint, complete boolean,
    session string, number bigint, part bigint, topic string, count bigint, ttl_ms bigint, digests array<bigint>,
    broker string, topic_id bigint, first bigint,
    subscriber string, pattern string, acked bigint, dropped bigint, sent_ms bigint, epoch bigint, shared boolean,
    ranges array<array<bigint>>, passed array<array<bigint>>, token bigint, done array<array<bigint>>,
    broken string
"""
#: Fields with these values are omitted in the files.
_DEFAULTS: dict[str, bool | float | int | str] = {
    "part": 0,
    "ttl_ms": 0,
    "pattern": "",
    "dropped": 0,
    "token": 0,
    "shared": False,
}

#: Identifies a subscription on one topic.
KEY = ["broker", "topic_id", "subscriber", "pattern"]
#: Identifies a put. A transaction may have several parts.
PUT = ["session", "number", "part"]

SUFFIX = ".ndjson"
#: A range is expanded in two steps, so that no row contains more offsets than this.
_CHUNK = 10_000


def read_lines(spark: SparkSession, folder: str) -> DataFrame:
    """Read all lines of all files, with the name of the file as `file`. A line that can't be parsed has only `broken`
    and `file`. Raises SettingInvalid if there are no records."""
    if "://" not in folder and not glob(os.path.join(escape(folder), f"*{SUFFIX}")):
        advice = "set ONCEMQ_RECORD for clients, or connect with record="
        raise errors.SettingInvalid(f"'{folder}' contains no records (*{SUFFIX}): {advice}")
    reader = spark.read.schema(_SCHEMA).option("columnNameOfCorruptRecord", "broken")
    lines = reader.option("pathGlobFilter", f"*{SUFFIX}").json(folder)
    return lines.selectExpr("*", "_metadata.file_name as file").fillna(_DEFAULTS)


def of_kind(lines: DataFrame, *kinds: str) -> DataFrame:
    return lines.where(sf.col("kind").isin(*kinds))


def start_and_stop(frame: DataFrame, column: str) -> DataFrame:
    """One row for each (first, count) in an array column, as `start` and `stop`."""
    found = frame.select("*", sf.explode(column).alias("range")).drop(column)
    first, count = sf.col("range")[0], sf.col("range")[1]
    return found.withColumn("start", first).withColumn("stop", first + count).drop("range")


def explode_ranges(frame: DataFrame) -> DataFrame:
    """One row for each offset of [start, stop)."""
    chunks = frame.where("stop > start").withColumn(
        "chunk", sf.explode(sf.sequence("start", sf.col("stop") - 1, sf.lit(_CHUNK).cast("bigint")))
    )
    last = sf.least(sf.col("chunk") + (_CHUNK - 1), sf.col("stop") - 1)
    return chunks.withColumn("offset", sf.explode(sf.sequence("chunk", last))).drop("chunk", "start", "stop")
