"""Finds the columns of a target that say from which message a row comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from oncemq.spark.pipeline.ddl import quoted
from oncemq.spark.pipeline.model import MESSAGE_PREFIX

OFFSET = MESSAGE_PREFIX + "offset"
TOPIC = MESSAGE_PREFIX + "topic"
KEY = MESSAGE_PREFIX + "idempotency_key"


class Identity(msgspec.Struct, frozen=True):
    """The names of columns. Either `key` or `offset` is set; without `topic`, there is one topic."""

    offset: str = ""
    topic: str = ""
    #: `TOPIC_ID-OFFSET`.
    key: str = ""

    @property
    def columns(self) -> list[str]:
        return [name for name in (self.topic, self.offset, self.key) if name]

    def select(self, column_of: dict[str, Column], only_topic: str) -> list[Column]:
        """The columns `topic`, `topic_id` and `offset`. One of the first two is null."""
        if self.key:
            parts = F.split(column_of[self.key], "-")
            topic_id = F.conv(parts[0], 16, 10).try_cast("bigint")
            return [
                F.lit(None).cast("string").alias("topic"),
                topic_id.alias("topic_id"),
                _offset(F.get(parts, F.lit(1))),
            ]
        topic = column_of[self.topic].cast("string") if self.topic else F.lit(only_topic)
        return [topic.alias("topic"), F.lit(None).cast("bigint").alias("topic_id"), _offset(column_of[self.offset])]


def _offset(column: Column) -> Column:
    # Null for a text that is no number, which others may have written into the target.
    return column.cast("string").try_cast("bigint").alias("offset")


def find_identity(columns: Sequence[str], wanted: Identity, topics: Sequence[str]) -> tuple[Identity | None, str]:
    """The identity that rows with these columns have, and if there is none, why. `wanted` overrides the names."""
    offset, topic, key = wanted.offset or OFFSET, wanted.topic or TOPIC, wanted.key or KEY
    if offset in columns and (topic in columns or len(topics) == 1):
        return Identity(offset, topic if topic in columns else ""), ""
    if key in columns:
        return Identity(key=key), ""
    if offset in columns:
        return None, f"the rows have no column {topic}, and there are several topics"
    return None, f"the rows have no column {offset} or {key}"


def with_topic_names(rows: DataFrame, names: Mapping[int, str], *more: str) -> DataFrame:
    """`topic` and `offset` of rows, with the name of the topic also where only its id is known."""
    topic = F.coalesce("topic", F.hex("topic_id"))
    if names:
        by_id = F.create_map(*(F.lit(part) for pair in names.items() for part in pair))
        topic = F.coalesce("topic", by_id[F.col("topic_id")], F.hex("topic_id"))
    return rows.select(topic.alias("topic"), "offset", *more)


def columns_by_name(names: Sequence[str]) -> dict[str, Column]:
    return {name: F.col(quoted(name)) for name in names}
