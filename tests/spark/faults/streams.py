"""The streams of these tests: a topic of numbers, through SQL, into a topic; and what must come out of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from oncemq.client.sync import Client
from oncemq.tools.faults.checker import Evidence, judge
from tests.spark.faults import faulty

#: Without a shuffle: the result is in the order of the source.
PROJECTION = """
    SELECT concat('n', cast(value AS string)) AS value, cast(offset AS string) AS key
    FROM {messages} WHERE cast(cast(value AS string) AS bigint) % 3 != 0
"""
#: With state: each batch adds to the counts of the batches before, and outputs all of them. (Complete mode: Spark's
#: Python sinks have no update mode.)
COUNTS = """
    SELECT concat_ws(':', bucket, count(*)) AS value
    FROM (SELECT cast(cast(value AS string) AS bigint) % 5 AS bucket FROM {messages}) GROUP BY bucket
"""
BUCKETS = 5
SUBSCRIPTION = "stream"
PARTITIONS = 3


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """One query. Its checkpoint and its faults are in a folder of its own."""

    folder: str
    url: str
    source: str
    target: str
    sql: str = PROJECTION
    rows_max: int = 120
    #: Ends after it has read what exists. Otherwise it runs until it is stopped.
    ends: bool = True
    #: With the product's own format, it has one task for a few rows, and no faults.
    format: str = faulty.FORMAT

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder) / "checkpoint"

    @property
    def faults(self) -> faulty.Faults:
        return faulty.Faults(f"{self.folder}/faults")

    def start(self, spark: SparkSession) -> StreamingQuery:
        rows = spark.sql(self.sql, messages=self._messages(spark))
        writer = rows.writeStream.format(self.format).outputMode("append" if self.sql == PROJECTION else "complete")
        writer = writer.option("url", self.url).option("topic", self.target).option("timeout", "120")
        writer = writer.options(**self._options).option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(availableNow=True) if self.ends else writer).start()

    def run(self, spark: SparkSession) -> None:
        """Run until it has read everything."""
        self.start(spark).awaitTermination()

    def _messages(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format(self.format).option("url", self.url).option("topic", self.source)
        reader = reader.option("subscription", SUBSCRIPTION).option("startingOffsets", "earliest")
        reader = reader.option("maxOffsetsPerTrigger", self.rows_max).option("partitions", PARTITIONS)
        return reader.options(**self._options).option("timeout", "120").load()

    @property
    def _options(self) -> dict[str, str]:
        return {"faults": f"{self.folder}/faults"} if self.format == faulty.FORMAT else {}

    # The checkpoint.

    def planned(self) -> list[int]:
        return _entries(self.checkpoint / "offsets")

    def done(self) -> list[int]:
        return _entries(self.checkpoint / "commits")

    def forget_last_batch(self) -> None:
        """Restore the state before Spark recorded its last batch as done."""
        last = self.done()[-1]
        (self.checkpoint / "commits" / str(last)).unlink()
        (self.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)


def _entries(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal())


def make_topics(client: Client, *streams: Stream) -> None:
    """Create the topics. The source has only the stream's subscription: what is acked too early is deleted."""
    for stream in streams:
        client.subscribe(stream.source, SUBSCRIPTION, "earliest")
        client.create_topic(stream.target, retain_ms=24 * 3_600_000)


def put_numbers(client: Client, topic: str, first: int, stop: int) -> None:
    client.put_many(topic, [str(number) for number in range(first, stop)])


Row = tuple[bytes | None, bytes]


def rows_in(client: Client, topic: str) -> list[Row]:
    return [(message.key, message.value) for message in client.read(topic)]


def projected(first: int, stop: int) -> list[Row]:
    """Return the rows of PROJECTION for numbers that are equal to their offsets."""
    return [(b"%d" % number, b"n%d" % number) for number in range(first, stop) if number % 3]


def counted(stop: int) -> list[bytes]:
    """Return the sorted rows of a COUNTS batch that ends before the number `stop`."""
    return sorted(b"%d:%d" % (bucket, len(range(bucket, stop, BUCKETS))) for bucket in range(BUCKETS))


def problems_of_projection(found: Sequence[Row], count: int) -> list[str]:
    """Check that each message is there once and in order."""
    expected = [str(row) for row in projected(0, count)]
    evidence = Evidence({"rows": expected}, {"rows": dict.fromkeys(expected, -1)}, {"rows": list(map(str, found))})
    return [str(problem) for problem in judge(evidence).problems]


def problems_of_counts(found: Sequence[Row], count: int) -> list[str]:
    """Check that each batch has every bucket once and counts more than the one before, and that the last counts all."""
    batches = [sorted(value for _, value in found[at : at + BUCKETS]) for at in range(0, len(found), BUCKETS)]
    reached = 0
    for number, batch in enumerate(batches):
        stop = sum(int(value.partition(b":")[2]) for value in batch)
        if stop <= reached or batch != counted(stop):
            return [f"batch {number} of the counts is {batch}, after {reached} numbers"]
        reached = stop
    return [] if reached == count else [f"{reached} numbers were counted, and {count} were put"]
