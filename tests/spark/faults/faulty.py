"""`format("oncemq-faulty")`: the product's source and sink, with places where something goes wrong on demand.

Each fault is a file in a folder that the option `faults` names. Spark's processes look for it at their points; the
first that takes it away suffers it, so that it happens once. Workers get this module by value: they can't import the
tests. So it imports nothing of them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from oncemq.spark import ranges
from oncemq.spark.data_source import OnceMQSource
from oncemq.spark.options import SinkOptions, SourceOptions, sink_options, source_options
from oncemq.spark.sink import StreamWriter
from oncemq.spark.source import StreamReader
from oncemq.spark.task import task_identity

FORMAT = "oncemq-faulty"

#: On the driver, once in a batch. Spark notes a batch as done after the last of them.
PLANNING, BEFORE_COMMIT, AFTER_COMMIT = "planning", "before-commit", "after-commit"
#: On the driver, from the second batch of a life on: the subscription is acked.
BEFORE_ACK, AFTER_ACK = "before-ack", "after-ack"
#: In a task: it has its first rows, some of them are staged, all of them.
STAGING, STAGED = "staging", "staged"
DRIVER_POINTS = (PLANNING, BEFORE_COMMIT, AFTER_COMMIT, BEFORE_ACK, AFTER_ACK)
TASK_POINTS = (STAGING, STAGED)

#: What happens there: an exception; SIGKILL for this process, a worker of Spark's; waiting for somebody to kill it.
RAISE, DIE, HANG = "raise", "die", "hang"

#: So that a few rows are enough for several tasks.
ROWS_PER_TASK = 20
_HANG_S = 600.0


class Faults:
    """Those that wait for their points, and those that were met."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    # In a test.

    def plant(self, point: str, action: str, *, batch: int = 0) -> None:
        """`batch`: the first that may meet it, where the point knows its batch."""
        self._folder.mkdir(parents=True, exist_ok=True)
        making = self._folder / f"{point}.making"
        making.write_text(json.dumps({"action": action, "batch": batch}))
        making.rename(self._folder / point)

    def is_met(self, point: str) -> bool:
        return (self._folder / f"{point}.met").exists()

    def clear(self) -> None:
        for path in self._folder.glob("*"):
            path.unlink()

    # In a process of Spark's.

    def meet(self, point: str, batch: int = sys.maxsize) -> None:
        path = self._folder / point
        try:
            fault = json.loads(path.read_text())
            if batch < fault["batch"]:
                return
            path.rename(f"{path}.met")
        except FileNotFoundError:
            return
        self._suffer(fault["action"], point)

    def _suffer(self, action: str, point: str) -> None:
        if action == RAISE:
            raise RuntimeError(f"planted: {point}")
        if action == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        until_s = time.monotonic() + _HANG_S
        while time.monotonic() < until_s:
            time.sleep(0.01)
        os._exit(1)


class FaultyReader(StreamReader):
    def __init__(self, options: SourceOptions, faults: Faults) -> None:
        super().__init__(options)
        self._faults = faults

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_faults": self._faults}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._faults.meet(PLANNING)
        with mock.patch.object(ranges, "ROWS_PER_TASK_MIN", ROWS_PER_TASK):
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


class FaultySource(OnceMQSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return FaultyReader(source_options(self.options, is_stream=True), Faults(self.options["faults"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return FaultyWriter(sink_options(self.options, is_stream=True), schema, Faults(self.options["faults"]))


def register(spark: SparkSession) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(FaultySource)
