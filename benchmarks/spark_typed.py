"""Typed columns of a topic in Spark, compared with the same rows as JSON that Spark decodes with from_json.

    python -m benchmarks.spark_typed [--rows N] [--rounds N] [--json]

The same rows are stored twice: as typed batches (`put_frame`), and as JSON values (`put_many`). Each is read as typed
columns, and both are compared with reading the JSON values and decoding them with from_json. The cases alternate, and
the best run of each is the result.
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

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from oncemq.arrow.typed_payloads import TypedRows, build_typed_payloads
from oncemq.arrow.typed_rows import payload_values
from oncemq.client.internal import internal_api
from oncemq.client.sync import Client
from oncemq.protocol.commands import PutSchema
from oncemq.protocol.replies import SchemaReply
from oncemq.protocol.schema import Schema, SchemaVersion, parse_fields
from oncemq.protocol.schema.arrow import to_arrow
from oncemq.spark import session
from oncemq.testing.broker_process import BrokerProcess

_ROWS = 2_000_000
_CORES = 2
_FIELDS = (
    "id: int64 not null, customer: string, amount: float64, quantity: int32, paid: bool, at: timestamp, city: string"
)
_DDL = "id bigint, customer string, amount double, quantity int, paid boolean, at timestamp, city string"
_CHUNK = 20_000


def _chunk(start: int) -> Any:
    """Rows that look like orders: about 130 bytes of JSON each."""
    rows = range(start, start + _CHUNK)
    columns = {
        "id": pa.array(rows, pa.int64()),
        "customer": pa.array([f"customer-{row % 9973}" for row in rows]),
        "amount": pa.array([row % 10_000 / 100 for row in rows], pa.float64()),
        "quantity": pa.array([row % 7 for row in rows], pa.int32()),
        "paid": pa.array([row % 3 == 0 for row in rows]),
        "at": pa.array([1_700_000_000_000_000 + row * 1000 for row in rows]).cast(pa.timestamp("us", "UTC")),
        "city": pa.array([("Berlin", "Paris", "Rome")[row % 3] for row in rows]),
    }
    return pa.record_batch(list(columns.values()), schema=to_arrow(Schema(parse_fields(_FIELDS))))


def fill(client: Client, rows: int) -> None:
    """Store the rows as typed batches in `typed`, and as JSON in `json`."""
    version = SchemaVersion(1, Schema(parse_fields(_FIELDS)))
    for topic in ("typed", "json"):
        client.create_topic(topic, retain_ms=24 * 3600 * 1000)
    internal_api(client).call(PutSchema("typed", version.schema), SchemaReply)
    for start in range(0, rows, _CHUNK):
        chunk = _chunk(start)
        client.put_frame("typed", chunk)
        for payload in build_typed_payloads(TypedRows(chunk), version, 2**24):
            client.put_many("json", payload_values(payload.payload))
    internal_api(client).call(PutSchema("json", version.schema), SchemaReply)


class TypedBench:
    def __init__(self, spark: SparkSession, broker: BrokerProcess, rows: int) -> None:
        self._spark = spark
        self._broker = broker
        self._rows = rows

    def _read(self, topic: str, **options: str) -> DataFrame:
        reader = self._spark.read.format("oncemq").options(url=self._broker.url, topic=topic, partitions=_CORES)
        return reader.options(**options).load()

    def typed_batches(self) -> float:
        return self._rate_of(self._read("typed", schema="topic"))

    def json_values(self) -> float:
        return self._rate_of(self._read("json", schema="topic"))

    def from_json(self) -> float:
        values = self._read("json", columns="value")
        decoded = values.select(F.from_json(F.col("value").cast("string"), _DDL).alias("row")).select("row.*")
        return self._rate_of(decoded)

    def _rate_of(self, frame: DataFrame) -> float:
        begun = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return self._rows / (time.perf_counter() - begun)


def measure(bench: TypedBench, rounds: int) -> list[dict[str, Any]]:
    """Return the rows per second of each case, and the ratio to from_json."""
    cases: dict[str, Callable[[], float]] = {
        "typed batches, schema=topic": bench.typed_batches,
        "JSON values, schema=topic": bench.json_values,
        "JSON values, from_json": bench.from_json,
    }
    best = dict.fromkeys(cases, 0.0)
    for _ in range(rounds):
        for name, case in cases.items():
            best[name] = max(best[name], case())
    base = best["JSON values, from_json"]
    return [{"case": name, "rows_per_s": round(rate), "ratio": round(rate / base, 2)} for name, rate in best.items()]


def run(spark: SparkSession, broker: BrokerProcess, rows: int = _ROWS, rounds: int = 3) -> list[dict[str, Any]]:
    """Fill the topics, and measure. `benchmarks.spark` calls this, too."""
    with broker.connect() as client:
        fill(client, rows)
    return measure(TypedBench(spark, broker, rows), rounds)


def show(row: dict[str, Any]) -> None:
    print(f"{row['case']:<30}{row['rows_per_s']:>12,} rows/s   {row['ratio']:.2f} of from_json", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", default=".", help="where the data lies; never on tmpfs")
    parser.add_argument("--rows", type=int, default=_ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="the figures as JSON, at the end")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="oncemq-bench-", dir=chosen.folder)).absolute()
    spark = session.build(
        "bench", master=f"local[{_CORES}]", conf={"spark.sql.warehouse.dir": str(folder / "warehouse")}
    )
    try:
        with BrokerProcess(folder / "data") as broker:
            found = run(spark, broker, chosen.rows, chosen.rounds)
        for row in found:
            show(row)
        if chosen.json:
            print(json.dumps(found))
    finally:
        spark.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
