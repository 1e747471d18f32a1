"""Reads the content of any target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from oncemq.spark.audit.pipelines.identity import Identity
from oncemq.spark.audit.pipelines.readers.topic import read_topic, topic_columns
from oncemq.spark.audit.pipelines.subject import Subject
from oncemq.spark.audit.pipelines.targets import TargetContent
from oncemq.spark.targets.declarations import DeltaTarget, ParquetTarget, PostgresTarget, Target, TopicTarget

_SCRATCH = "oncemq-audit-"


@contextmanager
def read_content(
    subject: Subject, query_id: str, columns: Sequence[str], identity: Identity | None, only_topic: str
) -> Iterator[TargetContent]:
    """`columns`: those of the rows. `only_topic`: the topic of rows that only contain an offset."""
    spark, target = subject.spark, subject.pipeline.target
    # Imported on use, because each target needs packages that the others do not need.
    if isinstance(target, TopicTarget):
        by_name = topic_columns(subject.pipeline.encoding, columns)
        yield read_topic(subject, target.topic, query_id, by_name, identity, only_topic)
    elif isinstance(target, ParquetTarget):
        from oncemq.spark.audit.pipelines.readers.parquet import read_parquet

        with TemporaryDirectory(prefix=_SCRATCH) as scratch:
            yield read_parquet(spark, target, query_id, identity, only_topic, scratch)
    elif isinstance(target, DeltaTarget):
        from oncemq.spark.audit.pipelines.readers.delta import read_delta

        with TemporaryDirectory(prefix=_SCRATCH) as scratch:
            yield read_delta(spark, target, query_id, identity, only_topic, scratch)
    elif isinstance(target, PostgresTarget):
        from oncemq.spark.audit.pipelines.readers.postgres import read_postgres

        with TemporaryDirectory(prefix=_SCRATCH) as scratch:
            yield read_postgres(spark, target, query_id, identity, only_topic, scratch)
    else:
        yield TargetContent(rows=None, remarks=("the console keeps nothing",))


def target_name(target: Target) -> str:
    if isinstance(target, TopicTarget):
        return f"topic {target.topic}" if target.topic else "topics by row"
    if isinstance(target, ParquetTarget):
        return f"Parquet {target.path}"
    if isinstance(target, DeltaTarget):
        return f"Delta {target.path}"
    if isinstance(target, PostgresTarget):
        return f"PostgreSQL {target.table}"
    return "console"
