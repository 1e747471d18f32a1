"""A Delta table. Each transaction of its log names the query, the micro-batch and the files that it added."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
from pyspark.sql import SparkSession

from oncemq.spark.audit.pipelines.identity import Identity
from oncemq.spark.audit.pipelines.readers.parquet_files import count_rows, read_files
from oncemq.spark.audit.pipelines.targets import TargetContent
from oncemq.spark.targets.declarations import DeltaTarget
from oncemq.spark.targets.delta.table import content_id, content_version, last_batch, open_table
from oncemq.spark.targets.files.file_writer import local_path


class _Commit(msgspec.Struct, frozen=True):
    query: str
    batch: int
    #: What the log has of the digest of the micro-batch.
    content: int | None
    added: tuple[str, ...]


def read_delta(
    spark: SparkSession, target: DeltaTarget, query_id: str, identity: Identity | None, only_topic: str
) -> TargetContent:
    root = local_path(target.path)
    table = open_table(root)
    if table is None:
        return TargetContent(rows=read_files(spark, root, [], identity, only_topic), count=0, last_batch=-1)
    active = {os.path.relpath(_local(path), root) for path in table.file_uris()}
    commits = list(_commits(root))
    others = {path for commit in commits if commit.query not in ("", query_id) for path in commit.added}
    existing = {path for path in active if os.path.exists(os.path.join(root, path))}
    ours = sorted(os.path.join(root, path) for path in existing - others)
    own = [commit for commit in commits if commit.query == query_id]
    return TargetContent(
        rows=read_files(spark, root, ours, identity, only_topic),
        count=sum(count_rows({0: ours}).values()),
        last_batch=last_batch(table, query_id),
        rows_by_batch=_rows_by_batch(root, own, active, existing),
        contents={each.batch: _stored(each.content) for each in own if each.content is not None},
        stored_digest=lambda digest: _stored(content_version(digest)),
        missing_files=tuple(sorted(active - existing)),
        has_other_writers=bool(others),
        remarks=(f"{len(others)} files of other queries",) if others else (),
    )


def _stored(version: int) -> bytes:
    return version.to_bytes(8)


def _rows_by_batch(root: str, commits: list[_Commit], active: set[str], existing: set[str]) -> dict[int, int] | None:
    """None if the files of a micro-batch were replaced, as by an optimisation of the table, or its log was deleted."""
    files: dict[int, list[str]] = {}
    for commit in commits:
        if not active.issuperset(commit.added):
            return None
        kept = [os.path.join(root, path) for path in commit.added if path in existing]
        files.setdefault(commit.batch, []).extend(kept)
    return count_rows(files)


def _commits(root: str) -> Iterator[_Commit]:
    """The entries of the log that still exist. Old ones may have been deleted after a checkpoint of the table."""
    log = os.path.join(root, "_delta_log")
    for name in sorted(os.listdir(log)):
        if not (name.endswith(".json") and name.partition(".")[0].isdigit()):
            continue
        with open(os.path.join(log, name), encoding="utf-8") as file:
            actions: list[dict[str, Any]] = [json.loads(line) for line in file if line.strip()]
        added = tuple(unquote(each["add"]["path"]) for each in actions if "add" in each)
        transactions = {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each}
        # A transaction of the sink has the query's id, and the query's id with a suffix for the digest.
        query = min(transactions, key=len, default="")
        yield _Commit(query, transactions.get(query, -1), transactions.get(content_id(query)), added)


def _local(uri: str) -> str:
    return unquote(uri.removeprefix("file://"))
