"""A program that a user might write, run by test_session.py on a machine without Java: a batch, a stream, Ctrl-C,
and the end of its Java process."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from oncemq.protocol.errors import PipelineFailed
from oncemq.spark import jvm, session
from oncemq.testing.spark import QUICK_START

#: The last line of standard error before Java is killed. What follows may be tracebacks of Spark's workers.
JAVA_IS_KILLED = "Java is killed now."
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Numbers(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "number long"

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader()


class Reader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition((0, 50)), InputPartition((50, 100))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((number,) for number in range(*partition.value))


class StreamReader(DataSourceStreamReader):
    """Ten more each time that it is asked."""

    end = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"offset": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802
        self.end += 10
        return {"offset": self.end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["offset"], end["offset"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((number,) for number in range(*partition.value))


def batch(spark: SparkSession, folder: str) -> list[tuple[int, int]]:
    spark.read.format("numbers").load().write.parquet(f"{folder}/numbers")
    rows = spark.read.parquet(f"{folder}/numbers").selectExpr("number % 2 as odd", "number")
    return sorted((row[0], row[1]) for row in rows.groupBy("odd").sum("number").collect())


def start_stream(spark: SparkSession, folder: str) -> StreamingQuery:
    odd = spark.readStream.format("numbers").load().selectExpr("number % 2 as odd").groupBy("odd").count()
    # It is stopped between two batches: one that is interrupted may be reported as an error.
    stream = odd.writeStream.trigger(processingTime="1 second")
    query = stream.outputMode("complete").format("memory").queryName("counts")
    return query.option("checkpointLocation", f"{folder}/checkpoint").start()


def wait_for_batches(query: StreamingQuery, count: int) -> None:
    first = query.lastProgress["batchId"] if query.lastProgress else -1
    until_s = time.monotonic() + 120
    while not query.lastProgress or query.lastProgress["batchId"] < first + count:
        assert query.isActive, query.exception()
        assert time.monotonic() < until_s, "the stream stands still"
        time.sleep(0.05)


def interrupt() -> bool:
    """As a terminal does it: the whole process group. True: Python noticed."""
    try:
        os.killpg(os.getpgid(0), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        return True
    return False


def lose_java(spark: SparkSession) -> list[str]:
    """Kill the Java process, as a kernel without memory does. What the error says, and whether anything is left."""
    found = []
    sys.stderr.write(JAVA_IS_KILLED + "\n")
    sys.stderr.flush()
    try:
        with jvm.quiet_loss(), jvm.explained():
            os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)  # type: ignore[union-attr]
            spark.range(1).count()
    except PipelineFailed as error:
        found.append(error.text)
    session.stop(spark)
    return [*found, str(SparkContext._gateway)]


def main(folder: str) -> None:
    settings = {
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.driver.memory": "1g",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    }
    spark = session.build("alone", master="local[2]", conf=settings)
    spark.dataSource.register(Numbers)
    told: dict[str, object] = {"java_home": spark.sparkContext._jvm.System.getProperty("java.home")}  # type: ignore[union-attr]
    told["sums"] = batch(spark, folder)
    query = start_stream(spark, folder)
    wait_for_batches(query, 1)
    told["is_interrupted"] = interrupt()
    wait_for_batches(query, 2)
    query.stop()
    counts = spark.table("counts").collect()
    told["counts"] = sorted(row["count"] for row in counts)
    told["error"] = str(query.exception() or "")
    told["loss"] = lose_java(spark)
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
