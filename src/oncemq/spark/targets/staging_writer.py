"""What the sinks' writers have in common: who writes, and whose batch it is that is committed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from oncemq.protocol import errors
from oncemq.spark.sink.task import TaskIdentity, task_identity


class Staged(WriterCommitMessage, msgspec.Struct, frozen=True):
    """What one attempt of a task has written, for nobody to see yet."""

    identity: TaskIdentity


class StagingWriter(DataSourceStreamArrowWriter):
    """Tasks stage; the driver publishes the batch, or drops what was staged.

    Spark may call `commit` again for a batch that is published, with other attempts of other partitions, and
    `abort` for a batch whose `commit` published it before it failed.
    """

    def __init__(self) -> None:
        self.identify: Callable[[], TaskIdentity] = task_identity

    @abstractmethod
    def publish(self, query_id: str, batch_id: int, stages: Sequence[Any]) -> None:
        """The batch, once, in the order of the stages."""

    @abstractmethod
    def drop(self, query_id: str, batch_id: int, stages: Sequence[Any]) -> None:
        """What was staged, unless it is published."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        stages = _arrived(messages)
        if stages:
            self.publish(_query_id(stages), batchId, stages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        stages = _arrived(messages)
        if stages:
            self.drop(_query_id(stages), batchId, stages)


def _arrived(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """A task that failed has sent none."""
    return [message for message in messages if isinstance(message, Staged)]


def _query_id(stages: Sequence[Staged]) -> str:
    (query_id,) = {stage.identity.query_id for stage in stages}
    if not query_id:
        raise errors.OnceMQError("this sink is for streams: without a query's id nothing tells a replayed batch")
    return query_id


# Options: what `start` hands to the data source.


def encode_columns(names: Sequence[str]) -> str:
    return msgspec.json.encode(names).decode()


def decode_columns(options: Mapping[str, str], key: str) -> tuple[str, ...]:
    return msgspec.json.decode(options.get(key, "[]"), type=tuple[str, ...])


def refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise errors.SettingInvalid("this sink appends; the output mode 'complete' would replace what is there")
