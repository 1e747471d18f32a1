"""A Delta table. Each transaction of its log names the query, the micro-batch and the files that it added."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
from pyspark.sql import SparkSession

from oncemq.spark.audit.pipelines.identity import Identity
from oncemq.spark.audit.pipelines.readers.parquet_files import count_rows, read_files
from oncemq.spark.audit.pipelines.targets import TargetContent
from oncemq.spark.targets.declarations import DeltaTarget
from oncemq.spark.targets.delta.sink import storage_of
from oncemq.spark.targets.delta.table import content_id, content_version, last_batch, open_table
from oncemq.spark.targets.files.disk import Disk
from oncemq.spark.targets.files.folder import Folder
from oncemq.spark.targets.open_folder import open_folder

_LOG = "_delta_log"


class _Commit(msgspec.Struct, frozen=True):
    version: int
    query: str
    batch: int
    #: What the log has of the digest of the micro-batch; None, 0 = it is not known.
    content: int | None
    added: tuple[str, ...]


def read_delta(
    spark: SparkSession,
    target: DeltaTarget,
    query_id: str,
    identity: Identity | None,
    only_topic: str,
    scratch: str,
) -> TargetContent:
    folder = open_folder(target.path, target.storage, Disk())
    table = open_table(folder.url, storage_of(target))
    if table is None:
        rows = read_files(spark, folder, [], identity, only_topic, scratch)
        return TargetContent(rows=rows, count=0, last_batch=-1)
    active = {_relative(uri, folder.url) for uri in table.file_uris()}
    commits = list(_commits(folder))
    others = {path for commit in commits if commit.query not in ("", query_id) for path in commit.added}
    existing = active & {file.path for file in folder.list()}
    ours = sorted(existing - others)
    own = [commit for commit in commits if commit.query == query_id]
    # Old entries are deleted some time after a checkpoint of the table.
    is_whole = bool(commits) and commits[0].version == 0
    return TargetContent(
        rows=read_files(spark, folder, ours, identity, only_topic, scratch),
        count=sum(count_rows(folder, {0: ours}).values()),
        last_batch=last_batch(table, query_id),
        rows_by_batch=_rows_by_batch(folder, own, active, existing) if is_whole else None,
        contents={each.batch: _stored(each.content) for each in own if each.content},
        stored_digest=lambda digest: _stored(content_version(digest)),
        missing_files=tuple(sorted(active - existing)),
        has_other_writers=bool(others) if is_whole or others else None,
        remarks=(f"{len(others)} files of other queries",) if others else (),
    )


def _stored(version: int) -> bytes:
    return version.to_bytes(8)


def _relative(uri: str, root: str) -> str:
    path = uri if "://" in root else unquote(uri.removeprefix("file://"))
    return path.removeprefix(root.rstrip("/") + "/")


def _rows_by_batch(
    folder: Folder, commits: list[_Commit], active: set[str], existing: set[str]
) -> dict[int, int] | None:
    """None if the files of a micro-batch were replaced, as by an optimisation of the table."""
    files: dict[int, list[str]] = {}
    for commit in commits:
        if not active.issuperset(commit.added):
            return None
        files.setdefault(commit.batch, []).extend(path for path in commit.added if path in existing)
    return count_rows(folder, files)


def _commits(folder: Folder) -> Iterator[_Commit]:
    """The entries of the log that still exist, in their order."""
    entries = {file.path.rpartition("/")[2]: file.path for file in folder.list(_LOG)}
    for name, path in sorted(entries.items()):
        if not (name.endswith(".json") and name.partition(".")[0].isdigit()):
            continue
        lines = (folder.read(path) or b"").decode().splitlines()
        actions: list[dict[str, Any]] = [json.loads(line) for line in lines if line.strip()]
        added = tuple(unquote(each["add"]["path"]) for each in actions if "add" in each)
        transactions = {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each}
        # A transaction of the sink has the query's id, and the query's id with a suffix for the digest.
        query = min(transactions, key=len, default="")
        version = int(name.partition(".")[0])
        yield _Commit(version, query, transactions.get(query, -1), transactions.get(content_id(query)), added)
