"""The identity of the Spark task that a sink runs in.

`write()` of a Python data source gets only rows; the ids are in the context of the task. The query's id is stored in
the checkpoint, so a batch that is replayed after a restart has the same query id and batch id. Everything else may
differ then, including the number of partitions and the order of the rows.
"""

from __future__ import annotations

import uuid

import msgspec
from pyspark import TaskContext

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
#: Spark gives the jobs of a streaming query its run id as their group.
_RUN_ID = "spark.jobGroup.id"


class TaskIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one task of one batch."""

    #: Never changes while the checkpoint exists. "" = a batch write, which belongs to no query.
    query_id: str
    #: Rises by one with each micro-batch of the query. 0 for a batch write.
    batch_id: int
    #: The number of the partition, from 0. A replayed batch may have other partitions.
    partition: int
    #: Unique to this attempt: a retried or speculative task has another one.
    attempt: str
    #: Another one after each start of the query; "" = it is not known.
    run_id: str = ""


def task_identity() -> TaskIdentity:
    """The identity of the calling task. A batch write inside `foreachBatch` has the stream's query id and batch id."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a sink's write() must run inside a Spark task")
    query_id = context.getLocalProperty(_QUERY_ID) or ""
    batch_id = context.getLocalProperty(_BATCH_ID)
    if query_id and batch_id is None:
        raise RuntimeError(f"the Spark task of query {query_id} has no batch id; Spark 4.3 provides one")
    return TaskIdentity(
        query_id=query_id,
        batch_id=int(batch_id) if query_id and batch_id is not None else 0,
        partition=context.partitionId(),
        attempt=uuid.uuid4().hex,
        run_id=(context.getLocalProperty(_RUN_ID) or "") if query_id else "",
    )
