"""`format("oncemq-faulty")`: the product's source and sink, with points at which faults can be planted.

Each fault is a file in the folder that the option `faults` names. Spark's processes look for it at their points. The
first process that renames the file executes the fault, so that it happens once. Workers import these modules from the
folder in which Spark was started; imports are local where a worker does not need them, because it starts often.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.types import StructType

from oncemq.spark.data_source import OnceMQSource
from oncemq.spark.options import sink_options, source_options

FORMAT = "oncemq-faulty"

#: On the driver, once per batch. Spark records a batch as done after the last of them.
PLANNING, BEFORE_COMMIT, AFTER_COMMIT = "planning", "before-commit", "after-commit"
#: On the driver, from the second batch of a run on, when the subscription is acked.
BEFORE_ACK, AFTER_ACK = "before-ack", "after-ack"
#: In a task: some of its rows are staged; all of them are.
STAGING, STAGED = "staging", "staged"
DRIVER_POINTS = (PLANNING, BEFORE_COMMIT, AFTER_COMMIT, BEFORE_ACK, AFTER_ACK)
TASK_POINTS = (STAGING, STAGED)

#: What happens there: an exception; SIGKILL of the Spark worker; waiting until the campaign kills the driver.
RAISE, DIE, HANG = "raise", "die", "hang"

_HANG_S = 600.0


class Faults:
    """The planted faults, and those that have happened."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    # In a test.

    def plant(self, point: str, action: str, *, batch: int = 0) -> None:
        """`batch`: the first batch in which the fault happens, where the point knows its batch."""
        self._folder.mkdir(parents=True, exist_ok=True)
        making = self._folder / f"{point}.making"
        making.write_text(json.dumps({"action": action, "batch": batch}))
        making.rename(self._folder / point)

    def is_met(self, point: str) -> bool:
        return (self._folder / f"{point}.met").exists()

    def clear(self) -> None:
        for path in self._folder.glob("*"):
            path.unlink()

    # In a Spark process.

    def meet(self, point: str, batch: int = sys.maxsize) -> None:
        path = self._folder / point
        try:
            fault = json.loads(path.read_text())
            if batch < fault["batch"]:
                return
            path.rename(f"{path}.met")
        except FileNotFoundError:
            return
        self._execute(fault["action"], point)

    def _execute(self, action: str, point: str) -> None:
        if action == RAISE:
            raise RuntimeError(f"planted: {point}")
        if action == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        until_s = time.monotonic() + _HANG_S
        while time.monotonic() < until_s:
            time.sleep(0.01)
        os._exit(1)


class FaultySource(OnceMQSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._faults = options.pop("faults")

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from tests.spark.faults.faulty_parts import FaultyReader

        return FaultyReader(source_options(self.options, is_stream=True), Faults(self._faults))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from tests.spark.faults.faulty_parts import FaultyWriter

        return FaultyWriter(sink_options(self.options, is_stream=True), schema, Faults(self._faults))


def register(spark: SparkSession) -> None:
    spark.dataSource.register(FaultySource)
