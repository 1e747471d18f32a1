"""Which piece of work this is: asked by a sink inside of a Spark task, on the machine that runs it.

`write()` of a Python data source gets rows and nothing else; the ids are in the context of the task. The query's id
is kept in the checkpoint, so that a batch that is replayed after a restart has the same two ids. Everything else may
be different then, the number of partitions and the order of the rows included.
"""

from __future__ import annotations

import uuid

import msgspec
from pyspark import TaskContext

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class TaskIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one task of one batch."""

    #: Stays the same for as long as the checkpoint lives. "" = a batch write, which belongs to no query.
    query_id: str
    #: Rises by one with each micro-batch of the query. 0 for a batch write.
    batch_id: int
    #: Of the rows, from 0. A replayed batch may be cut into other partitions.
    partition: int
    #: Of this attempt alone: a retried or speculative task has another one.
    attempt: str


def task_identity() -> TaskIdentity:
    """Who asks. A batch write inside of `foreachBatch` belongs to the stream's query and batch."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a sink's write() runs inside of a Spark task; there is none here")
    query_id = context.getLocalProperty(_QUERY_ID) or ""
    batch_id = context.getLocalProperty(_BATCH_ID)
    if query_id and batch_id is None:
        raise RuntimeError(f"Spark's task knows its query, {query_id}, but not its batch: is this Spark 4.3?")
    return TaskIdentity(
        query_id=query_id,
        batch_id=int(batch_id) if query_id and batch_id is not None else 0,
        partition=context.partitionId(),
        attempt=uuid.uuid4().hex,
    )
