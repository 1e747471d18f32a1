"""The product's stream reader and writer, with the points of faulty.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from oncemq.spark.options import SinkOptions, SourceOptions
from oncemq.spark.sink.task import task_identity
from oncemq.spark.sink.writers import StreamWriter
from oncemq.spark.source import planning
from oncemq.spark.source.source import StreamReader
from tests.spark.faults.faulty import (
    AFTER_ACK,
    AFTER_COMMIT,
    BEFORE_ACK,
    BEFORE_COMMIT,
    PLANNING,
    STAGED,
    STAGING,
    Faults,
)

#: So that a few rows are enough for several tasks.
ROWS_PER_TASK = 20


class FaultyReader(StreamReader):
    def __init__(self, options: SourceOptions, faults: Faults) -> None:
        super().__init__(options)
        self._faults = faults

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_faults": self._faults}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._faults.meet(PLANNING)
        with mock.patch.object(planning, "TASK_ROWS_MIN", ROWS_PER_TASK):
            return super().partitions(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        self._faults.meet(BEFORE_ACK)
        super().commit(end)
        self._faults.meet(AFTER_ACK)


class FaultyWriter(StreamWriter):
    def __init__(self, options: SinkOptions, schema: StructType, faults: Faults) -> None:
        super().__init__(options, schema)
        self._faults = faults

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        batch_id = task_identity().batch_id
        message = super().write(self._watched(iterator, batch_id))
        self._faults.meet(STAGED, batch_id)
        return message

    def _watched(self, batches: Iterator[Any], batch_id: int) -> Iterator[Any]:
        for batch in batches:
            yield batch
            # Whoever asks for more has begun to stage these.
            self._faults.meet(STAGING, batch_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._faults.meet(BEFORE_COMMIT, batchId)
        super().commit(messages, batchId)
        self._faults.meet(AFTER_COMMIT, batchId)
