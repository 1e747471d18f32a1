"""Spark with the broker, compared with the same Spark without it. `make bench-spark` runs it.

    python -m benchmarks.spark [--folder DIR] [--rounds N] [--json]

Each case alternates with what it is compared with, several times, and the best run of each is the result: noise only
makes runs slower. Everything is durable: the broker syncs before it answers, as always.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark_sources import MemorySource, NowhereSink
from oncemq.spark import session
from oncemq.testing.broker_process import BrokerProcess

#: Bytes of a value → rows of a case.
_ROWS = {100: 3_000_000, 1000: 600_000}
_BATCHES = 6
_CORES = 2

Case = Callable[[], float]


class Bench:
    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path) -> None:
        self._spark = spark
        self._broker = broker
        self._folder = folder
        self._count = 0

    def fill(self, size: int) -> None:
        """Write the topic that is read, in batches of `put_many`, and the same rows as Parquet."""
        with self._broker.connect() as client:
            client.create_topic(f"rows.{size}", retain_ms=24 * 3600 * 1000)
            for _ in range(_ROWS[size] // 10_000):
                client.put_many(f"rows.{size}", [b"x" * size] * 10_000)
        self._topic(size).write.parquet(str(self._folder / f"{size}.parquet"), compression="none")

    # Batch reads.

    def _topic(self, size: int) -> DataFrame:
        rows: DataFrame = self._source(self._spark.read.format("oncemq"), size).load()
        return rows

    def _source(self, reader: Any, size: int) -> Any:
        return reader.options(url=self._broker.url, topic=f"rows.{size}", partitions=_CORES)

    def _memory(self, reader: Any, size: int) -> Any:
        return reader.options(rows=_ROWS[size], size=size, partitions=_CORES, perTrigger=_ROWS[size] // _BATCHES)

    def read_topic(self, size: int) -> float:
        return self._rate_of(size, self._topic(size))

    def read_memory(self, size: int) -> float:
        return self._rate_of(size, self._memory(self._spark.read.format("memory_batches"), size).load())

    def read_parquet(self, size: int) -> float:
        return self._rate_of(size, self._spark.read.parquet(str(self._folder / f"{size}.parquet")))

    def _rate_of(self, size: int, rows: DataFrame) -> float:
        begun = time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        return _ROWS[size] / (time.perf_counter() - begun)

    # Streams.

    def stream_topic(self, size: int) -> float:
        reader = self._source(self._spark.readStream.format("oncemq"), size)
        reader = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=_ROWS[size] // _BATCHES)
        return self._stream_rate(reader.option("subscription", f"bench-{self._next()}").load())

    def stream_memory(self, size: int) -> float:
        return self._stream_rate(self._memory(self._spark.readStream.format("memory_batches"), size).load())

    def _stream_rate(self, rows: DataFrame) -> float:
        """Return the rate without the first batch, which starts processes."""
        checkpoint = str(self._folder / f"checkpoint-{self._next()}")
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        steady = [batch for batch in running.recentProgress if batch["numInputRows"]][1:]
        spent_ms = sum(batch["durationMs"]["triggerExecution"] for batch in steady)
        return 1000.0 * sum(int(batch["numInputRows"]) for batch in steady) / float(spent_ms)

    # The sink.

    def write_topic(self, size: int) -> float:
        topic = f"written.{self._next()}"
        rate = self._write_rate(size, "oncemq", url=self._broker.url, topic=topic, create="true")
        with self._broker.connect() as client:
            client.delete_topic(topic)
        return rate

    def write_nowhere(self, size: int) -> float:
        return self._write_rate(size, "nowhere")

    def _write_rate(self, size: int, kind: str, **options: str) -> float:
        rows = self._spark.range(0, _ROWS[size], 1, _CORES)
        values = rows.selectExpr(f"CAST(lpad(CAST(id AS string), {size}, 'x') AS binary) AS value")
        begun = time.perf_counter()
        values.write.format(kind).options(**options).mode("append").save()
        return _ROWS[size] / (time.perf_counter() - begun)

    def _next(self) -> int:
        self._count += 1
        return self._count


#: (name, with the broker, without it, from Parquet files)
_CASES = (
    ("batch read", Bench.read_topic, Bench.read_memory, Bench.read_parquet),
    ("stream", Bench.stream_topic, Bench.stream_memory, None),
    ("batch write", Bench.write_topic, Bench.write_nowhere, None),
)
_AGAINST = {"batch read": "batches from memory", "stream": "batches from memory", "batch write": "batches thrown away"}


def measure(bench: Bench, rounds: int) -> list[dict[str, Any]]:
    found = []
    for size in _ROWS:
        bench.fill(size)
        for what, ours, theirs, parquet in _CASES:
            best = dict.fromkeys((ours, theirs, parquet), 0.0)
            for _ in range(rounds):
                for function in (ours, theirs, parquet):
                    if function is not None:
                        best[function] = max(best[function], function(bench, size))
            row = {"case": what, "bytes": size, "rows_per_s": round(best[ours]), "limit_per_s": round(best[theirs])}
            row |= {"limit": _AGAINST[what], "ratio": round(best[ours] / best[theirs], 2)}
            if parquet is not None:
                row["parquet_per_s"] = round(best[parquet])
            _show(row)
            found.append(row)
    return found


def _show(row: dict[str, Any]) -> None:
    parquet = f"   (Parquet: {row['parquet_per_s']:>10,}/s)" if "parquet_per_s" in row else ""
    print(
        f"{row['case']:<12}{row['bytes']:>6} B{row['rows_per_s']:>12,} rows/s   {row['ratio']:.2f} of {row['limit']} "
        f"({row['limit_per_s']:,}/s){parquet}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", default=".", help="where the data lies; never on tmpfs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="the figures as JSON, at the end")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="oncemq-bench-", dir=chosen.folder)).absolute()
    warehouse = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    spark = session.build("bench", master=f"local[{_CORES}]", conf=warehouse)
    try:
        for source in (MemorySource, NowhereSink):
            spark.dataSource.register(source)
        with BrokerProcess(folder / "data") as broker:
            found = measure(Bench(spark, broker, folder), chosen.rounds)
        if chosen.json:
            print(json.dumps(found))
    finally:
        spark.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
