"""The common part of the writers for Parquet, Delta and PostgreSQL: tasks stage rows, the driver publishes a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from oncemq.protocol import errors
from oncemq.spark.checkpoint.content import batch_content
from oncemq.spark.sink.task import TaskIdentity, task_identity


class StagedOutput(WriterCommitMessage, msgspec.Struct, frozen=True):
    """What one attempt of a task has written. Readers do not see it yet."""

    identity: TaskIdentity


class StagingWriter(DataSourceStreamArrowWriter):
    """Tasks stage rows; the driver publishes the batch, or discards what was staged.

    Spark may call `commit` again for a published batch, with other attempts and other partitions. It may call `abort`
    for a batch whose `commit` published it and then failed.
    """

    #: Whether a commit whose reply is lost may be executed later: that of a store without locks.
    commits_late = False

    def __init__(self, checkpoint: str) -> None:
        self.identify: Callable[[], TaskIdentity] = task_identity
        #: Where Spark stores what the query has planned; "" = it is not known.
        self.checkpoint = checkpoint

    @abstractmethod
    def publish(self, query_id: str, batch_id: int, stages: Sequence[Any], content: bytes) -> None:
        """Publish the batch, in the order of the stages. Do nothing if it was published before.

        `content` identifies what it consists of (b"" = it is not known). Raises BatchChanged if a batch of this number,
        or a later one, was published with other content."""

    @abstractmethod
    def discard(self, query_id: str, batch_id: int, stages: Sequence[Any]) -> None:
        """Delete what was staged, unless the batch was published."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        stages = _staged_outputs(messages)
        if stages:
            self.publish(_query_id(stages), batchId, stages, batch_content(self.checkpoint, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        stages = _staged_outputs(messages)
        if self.commits_late and len(stages) == len(messages):
            # A commit may have been requested, and may yet publish these files.
            return
        if stages:
            self.discard(_query_id(stages), batchId, stages)


def _staged_outputs(messages: Sequence[WriterCommitMessage | None]) -> list[StagedOutput]:
    """Without the tasks that failed: they send None."""
    return [message for message in messages if isinstance(message, StagedOutput)]


def _query_id(stages: Sequence[StagedOutput]) -> str:
    (query_id,) = {stage.identity.query_id for stage in stages}
    require_query(query_id)
    return query_id


def require_query(query_id: str) -> None:
    if not query_id:
        raise errors.OnceMQError("this sink is for streams: a batch write has no query id to recognise a replay by")


# The options that `start` passes to the data source.


def checkpoint_of(options: Mapping[str, str]) -> str:
    """The option `checkpointLocation`. Spark passes its name in lower case."""
    return next((value for name, value in options.items() if name.lower() == "checkpointlocation"), "")


def encode_columns(names: Sequence[str]) -> str:
    return msgspec.json.encode(names).decode()


def decode_columns(options: Mapping[str, str], key: str) -> tuple[str, ...]:
    return msgspec.json.decode(options.get(key, "[]"), type=tuple[str, ...])


def refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise errors.SettingInvalid(
            "this sink only appends; the output mode 'complete' would replace the existing rows: use 'append'"
        )
