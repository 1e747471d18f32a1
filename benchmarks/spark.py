"""Spark with the broker, compared with the same Spark without it. `make bench-spark` runs it.

    python -m benchmarks.spark [--folder DIR] [--rounds N] [--scale F] [--only NAME] [--json]

Each case alternates with what it is compared with, several times, and the best run of each is the result: noise only
makes runs slower. Everything is durable: the broker syncs before it answers, as always. At the end, each ratio is
printed next to the one that is wanted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks import spark_pipeline, spark_typed
from benchmarks.spark_sources import MemorySource, NowhereSink
from oncemq.spark import session
from oncemq.testing.broker_process import BrokerProcess

#: Bytes of a value → rows of a case.
_ROWS = {100: 3_000_000, 1000: 600_000}
_BATCHES = 6
_CORES = 2


class Rate(NamedTuple):
    """What a case is compared with, and the ratio that is wanted."""

    ours: Callable[[Bench, int], float]
    theirs: Callable[[Bench, int], float]
    against: str
    #: 0 = none is.
    wanted: float = 0.0


class Bench:
    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path, scale: float) -> None:
        self._spark = spark
        self._broker = broker
        self._folder = folder
        self._rows = {size: round(rows * scale) for size, rows in _ROWS.items()}
        self._count = 0

    def fill(self, size: int) -> None:
        """Write the topic that is read, in batches of `put_many`, and the same rows as Parquet."""
        with self._broker.connect() as client:
            client.create_topic(f"rows.{size}", retain_ms=24 * 3600 * 1000)
            for first in range(0, self._rows[size], 10_000):
                client.put_many(f"rows.{size}", [b"x" * size] * min(10_000, self._rows[size] - first))
        self._topic(size).write.parquet(str(self._folder / f"{size}.parquet"), compression="none")

    # Batch reads.

    def _topic(self, size: int) -> DataFrame:
        rows: DataFrame = self._source(self._spark.read.format("oncemq"), size).load()
        return rows

    def _source(self, reader: Any, size: int) -> Any:
        return reader.options(url=self._broker.url, topic=f"rows.{size}", partitions=_CORES)

    def _memory(self, reader: Any, size: int) -> Any:
        return reader.options(
            rows=self._rows[size], size=size, partitions=_CORES, perTrigger=self._rows[size] // _BATCHES
        )

    def read_topic(self, size: int) -> float:
        return self._rate_of(size, self._topic(size))

    def read_memory(self, size: int) -> float:
        return self._rate_of(size, self._memory(self._spark.read.format("memory_batches"), size).load())

    def read_parquet(self, size: int) -> float:
        return self._rate_of(size, self._spark.read.parquet(str(self._folder / f"{size}.parquet")))

    def _rate_of(self, size: int, rows: DataFrame) -> float:
        begun = time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        return self._rows[size] / (time.perf_counter() - begun)

    # Streams.

    def stream_topic(self, size: int) -> float:
        checkpoint = self._checkpoint()
        return self._stream_rate(self._stream(size, checkpoint).writeStream.format("noop"), checkpoint)

    def stream_to_topic(self, size: int) -> float:
        """The same rows as those of `write_topic`: a column `value`."""
        topic, checkpoint = f"written.{self._next()}", self._checkpoint()
        writer = self._stream(size, checkpoint, columns="value").writeStream.format("oncemq")
        rate = self._stream_rate(writer.options(url=self._broker.url, topic=topic, create="true"), checkpoint)
        self._delete(topic)
        return rate

    def _checkpoint(self) -> str:
        return str(self._folder / f"checkpoint-{self._next()}")

    def _stream(self, size: int, checkpoint: str, **options: str) -> DataFrame:
        reader = self._source(self._spark.readStream.format("oncemq"), size).options(**options)
        # Without it, the source syncs all file systems of the machine before it acks.
        reader = reader.option("checkpointLocation", checkpoint)
        reader = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=self._rows[size] // _BATCHES)
        rows: DataFrame = reader.option("subscription", f"bench-{self._next()}").load()
        return rows

    def stream_memory(self, size: int) -> float:
        rows = self._memory(self._spark.readStream.format("memory_batches"), size).load()
        return self._stream_rate(rows.writeStream.format("noop"), self._checkpoint())

    def _stream_rate(self, writer: DataStreamWriter, checkpoint: str) -> float:
        """Return the rate without the first batch, which starts processes."""
        running = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        running.awaitTermination()
        steady = [batch for batch in running.recentProgress if batch["numInputRows"]][1:]
        spent_ms = sum(batch["durationMs"]["triggerExecution"] for batch in steady)
        return 1000.0 * sum(int(batch["numInputRows"]) for batch in steady) / float(spent_ms)

    # The sink.

    def write_topic(self, size: int) -> float:
        topic = f"written.{self._next()}"
        rate = self._write_rate(size, "oncemq", url=self._broker.url, topic=topic, create="true")
        self._delete(topic)
        return rate

    def _delete(self, topic: str) -> None:
        with self._broker.connect() as client:
            client.delete_topic(topic)

    def write_nowhere(self, size: int) -> float:
        return self._write_rate(size, "nowhere")

    def _write_rate(self, size: int, kind: str, **options: str) -> float:
        rows = self._spark.range(0, self._rows[size], 1, _CORES)
        values = rows.selectExpr(f"CAST(lpad(CAST(id AS string), {size}, 'x') AS binary) AS value")
        begun = time.perf_counter()
        values.write.format(kind).options(**options).mode("append").save()
        return self._rows[size] / (time.perf_counter() - begun)

    def _next(self) -> int:
        self._count += 1
        return self._count


_RATES = {
    "batch read": Rate(Bench.read_topic, Bench.read_memory, "batches from memory", 0.8),
    "stream to noop": Rate(Bench.stream_topic, Bench.stream_memory, "batches from memory", 0.8),
    "batch write": Rate(Bench.write_topic, Bench.write_nowhere, "batches thrown away"),
    "stream to topic": Rate(Bench.stream_to_topic, Bench.write_topic, "batch write", 0.5),
    "Parquet": Rate(Bench.read_topic, Bench.read_parquet, "batches from Parquet files"),
}
#: The seconds of `pipeline run` may be this many times those of a plain program.
_PIPELINE_WANTED = 1.3
_TYPED_WANTED = 2.0
_TYPED_ROWS = 2_000_000


def measure_rates(bench: Bench, rounds: int, only: str) -> Iterator[dict[str, Any]]:
    chosen = {name: rate for name, rate in _RATES.items() if only in name}
    for size in _ROWS if chosen else ():
        bench.fill(size)
        for name, rate in chosen.items():
            pairs = [(rate.ours(bench, size), rate.theirs(bench, size)) for _ in range(rounds)]
            ours, theirs = (max(rates) for rates in zip(*pairs, strict=True))
            row = {"case": name, "bytes": size, "rows_per_s": round(ours), "limit_per_s": round(theirs)}
            row |= {"limit": rate.against, "ratio": round(ours / theirs, 2), "wanted": rate.wanted}
            print(
                f"{name:<16}{size:>6} B{row['rows_per_s']:>12,} rows/s   {row['ratio']:.2f} of {rate.against} "
                f"({row['limit_per_s']:,}/s)",
                flush=True,
            )
            yield row


def measure(
    spark: SparkSession, broker: BrokerProcess, folder: Path, chosen: argparse.Namespace
) -> list[dict[str, Any]]:
    found = list(measure_rates(Bench(spark, broker, folder, chosen.scale), chosen.rounds, chosen.only))
    if chosen.only in "typed":
        for row in spark_typed.run(spark, broker, round(_TYPED_ROWS * chosen.scale), chosen.rounds):
            spark_typed.show(row)
            found.append({**row, "limit": "from_json", "wanted": _TYPED_WANTED if "typed" in row["case"] else 0.0})
    if chosen.only in "pipeline":
        row = spark_pipeline.run(broker, folder, chosen.rounds)
        print(f"{row['case']}: {row['seconds']} s   {row['ratio']:.2f} of {row['limit']} ({row['limit_seconds']} s)")
        found.append({**row, "wanted": _PIPELINE_WANTED})
    return found


def judge(rows: list[dict[str, Any]]) -> None:
    """Print each ratio next to the one that is wanted."""
    print()
    for row in rows:
        if row["wanted"]:
            is_duration = "seconds" in row
            is_met = row["ratio"] <= row["wanted"] if is_duration else row["ratio"] >= row["wanted"]
            name = f"{row['case']}, {row['bytes']} B" if "bytes" in row else row["case"]
            sign = "≤" if is_duration else "≥"
            verdict = "met" if is_met else "NOT MET"
            print(f"{name:<34}{row['ratio']:>6.2f} {sign} {row['wanted']:.1f} of {row['limit']:<32}{verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", default=".", help="where the data lies; never on tmpfs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of rows")
    parser.add_argument(
        "--only", default="", help="only cases whose name contains this, such as 'stream', or 'pipeline'"
    )
    parser.add_argument("--json", action="store_true", help="the figures as JSON, at the end")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="oncemq-bench-", dir=chosen.folder)).absolute()
    warehouse = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    spark = session.build("bench", master=f"local[{_CORES}]", conf=warehouse)
    try:
        for source in (MemorySource, NowhereSink):
            spark.dataSource.register(source)
        with BrokerProcess(folder / "data") as broker:
            found = measure(spark, broker, folder, chosen)
        judge(found)
        if chosen.json:
            print(json.dumps(found))
    finally:
        spark.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
