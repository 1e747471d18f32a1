"""A model of Spark's driver, for many rounds without a JVM: the real source and sinks, on a checkpoint like Spark's.

The order of steps, and what a start makes of the entries that it finds, are those of Spark's micro-batch execution:

    latestOffset → offsets/N → commit(end of N-1) → partitions → read → write → commit of the sink → commits/N

The driver dies at random between any two steps, and is started again. It has no state, and no checksums beside files.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructType

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.spark.checkpoint.location import refuse_damaged
from oncemq.spark.options import sink_options, source_options
from oncemq.spark.sink import writers
from oncemq.spark.sink.task import TaskIdentity
from oncemq.spark.source import source
from oncemq.spark.source.source import StreamReader
from tests.spark.checkpoints import Checkpoint
from tests.spark.lost_entries.streams import put_ids
from tests.spark.targets.sink_drivers import DeltaFolder, ParquetFolder, PostgresRows, Sink

_VALUES = StructType().add("value", BinaryType())
_DEATH_SHARE = 0.04


class Killed(Exception):
    """The driver has died."""


class TopicOut:
    """The topic sink."""

    def __init__(self, client: Client, url: str, topic: str) -> None:
        self._client = client
        self._raw = {"url": url, "topic": topic, "create": "true"}
        self._topic = topic

    def found(self) -> list[int]:
        if self._topic not in {topic.name for topic in self._client.topics()}:
            return []
        return [int(message.value) for message in self._client.read(self._topic)]

    def writer(self, checkpoint: str) -> writers.StreamWriter:
        options = sink_options({**self._raw, "checkpointLocation": checkpoint}, is_stream=True)
        return writers.StreamWriter(options, _VALUES)

    def write(self, checkpoint: str, identity: TaskIdentity, numbers: Sequence[int]) -> WriterCommitMessage:
        rows = pa.record_batch({"value": pa.array([b"%d" % number for number in numbers], pa.binary())})
        with patch.object(writers, "task_identity", lambda: identity):
            return self.writer(checkpoint).write(iter([rows]))


class TableOut:
    """One of the other sinks."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def found(self) -> list[int]:
        # Before the first batch there is neither a folder nor a table.
        self._sink.writer()
        return self._sink.numbers()

    def writer(self, checkpoint: str) -> Any:
        writer = self._sink.writer()
        writer.checkpoint = checkpoint
        return writer

    def write(self, checkpoint: str, identity: TaskIdentity, numbers: Sequence[int]) -> WriterCommitMessage:
        writer = self.writer(checkpoint)
        writer.identify = lambda: identity
        rows = pa.record_batch({"number": pa.array(numbers, pa.int64()), "text": [str(each) for each in numbers]})
        message: WriterCommitMessage = writer.write(iter([rows]))
        return message


class ModelStream:
    """A topic whose ids are copied into a target by the model."""

    def __init__(
        self,
        client: Client,
        name: str,
        folder: Path,
        out: TopicOut | TableOut,
        seed: int,
        *,
        acks_last: bool = False,
        retain_ms: int = 0,
    ) -> None:
        self.name = name
        self.folder = folder
        self.put_ids = 0
        self.acks_last = acks_last
        self._client = client
        self._out = out
        self._random = Random(seed)
        self.checkpoint.synced.mkdir()
        client.create_topic(name, retain_ms=retain_ms)
        client.subscribe(name, name, "earliest")

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.folder / "checkpoint")

    def put(self, count: int) -> None:
        self.put_ids = put_ids(self._client, self.name, self.put_ids, count)

    def found(self) -> list[int]:
        return self._out.found()

    def forget_checkpoint(self) -> None:
        self.checkpoint.empty()

    def run(self, url: str, _session: SparkSession | None, *, max_per_trigger: int = 0) -> int:
        """Process what is there. Returns the number of micro-batches."""
        with patch.object(source, "sync_checkpoint", lambda _: self.checkpoint.sync()):
            while True:
                try:
                    return self._run_once(url, max_per_trigger)
                except Killed:
                    continue

    def _run_once(self, url: str, max_per_trigger: int) -> int:
        options = {"url": url, "topics": json.dumps([self.name]), "subscription": self.name}
        options |= {"startingOffsets": "earliest", "checkpointLocation": self.checkpoint.location}
        refuse_damaged(self.checkpoint.location)
        reader = StreamReader(source_options(options, is_stream=True))
        driver = _Driver(self.checkpoint, reader, self._out, self._random)
        end = driver.run(ReadMaxRows(max_per_trigger) if max_per_trigger else ReadAllAvailable())
        if self.acks_last and end is not None:
            StreamReader(source_options(options, is_stream=True)).commit(end)
        return driver.batches


def make_model_streams(client: Client, url: str, folder: Path, database: str, seed: int) -> list[ModelStream]:
    """One stream into each kind of target. The last one acks at the end of each run, as an archive may do."""
    places = [folder / f"model-{number}" for number in range(5)]
    for place in places:
        place.mkdir()
    prefix = f"m{seed:x}"
    outs: list[TopicOut | TableOut] = [
        TopicOut(client, url, f"{prefix}-out"),
        TableOut(ParquetFolder(places[1] / "rows")),
        TableOut(DeltaFolder(places[2] / "rows")),
        TableOut(PostgresRows(database)),
        TableOut(ParquetFolder(places[4] / "rows")),
    ]
    return [
        ModelStream(
            client,
            f"{prefix}-{number}",
            place,
            out,
            seed + number,
            acks_last=number == 4,
            retain_ms=3_600_000 if number % 2 else 0,
        )
        for number, (place, out) in enumerate(zip(places, outs, strict=True))
    ]


class _Driver:
    """One start of the driver."""

    def __init__(self, checkpoint: Checkpoint, reader: StreamReader, out: TopicOut | TableOut, random: Random) -> None:
        self._folder = checkpoint.folder
        self._reader = reader
        self._out = out
        self._random = random
        self.batches = 0
        for kind in ("offsets", "commits"):
            (self._folder / kind).mkdir(parents=True, exist_ok=True)
        metadata = self._folder / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
        self._query_id = json.loads(metadata.read_text())["id"]

    def run(self, limit: Any) -> dict[str, Any] | None:
        """Run micro-batches until there is nothing new. Returns where the last one ended."""
        batch, start, end = self._begin()
        self._reader.prepareForTriggerAvailableNow()
        last = None
        while True:
            self._may_die()
            if end is None:
                end = json.loads(json.dumps(self._reader.latestOffset(start, limit)))
                if end == start:
                    return last
                self._plan(batch, end)
            self._execute(batch, start, end)
            self.batches += 1
            batch, start, last, end = batch + 1, end, end, None

    def _begin(self) -> tuple[int, dict[str, Any], dict[str, Any] | None]:
        """The number, the start and, if it is planned, the end of the first micro-batch."""
        planned = self._last("offsets")
        if planned is None:
            return 0, self._reader.initialOffset(), None
        end = self._offsets(planned)
        if planned == self._last("commits"):
            return planned + 1, end, None
        start = self._offsets(planned - 1) if planned else self._reader.initialOffset()
        return planned, start, end

    def _plan(self, batch: int, end: dict[str, Any]) -> None:
        self._add("offsets", batch, f"v1\n{{}}\n{json.dumps(end)}")
        self._may_die()
        if batch:
            self._reader.commit(self._offsets(batch - 1))
            self._may_die()

    def _execute(self, batch: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        partitions = self._reader.partitions(start, end)
        self._may_die()
        checkpoint = str(self._folder)
        messages: list[WriterCommitMessage | None] = []
        for index, partition in enumerate(partitions):
            numbers = [
                json.loads(value)["id"]
                for rows in self._reader.read(partition)
                for value in rows.column("value").to_pylist()
            ]
            identity = TaskIdentity(
                query_id=self._query_id, batch_id=batch, partition=index, attempt=self._random.randbytes(16).hex()
            )
            messages.append(self._out.write(checkpoint, identity, numbers))
            self._may_die()
        try:
            self._out.writer(checkpoint).commit(messages, batch)
        except errors.OnceMQError:
            self._out.writer(checkpoint).abort(messages, batch)
            raise
        self._may_die()
        self._add("commits", batch, "v1\n{}")

    def _may_die(self) -> None:
        if self._random.random() < _DEATH_SHARE:
            raise Killed

    def _last(self, kind: str) -> int | None:
        numbers = [int(name) for name in os.listdir(self._folder / kind) if name.isdecimal()]
        return max(numbers, default=None)

    def _add(self, kind: str, batch: int, text: str) -> None:
        path = self._folder / kind / str(batch)
        if path.exists():
            raise errors.PipelineFailed(f"{kind}/{batch} exists: another driver runs on this checkpoint")
        path.write_text(text)

    def _offsets(self, batch: int) -> dict[str, Any]:
        try:
            found = json.loads((self._folder / "offsets" / str(batch)).read_text().split("\n")[2])
        except (OSError, ValueError, LookupError) as error:
            raise errors.PipelineFailed(f"offsets/{batch} can't be read: {error}") from None
        assert isinstance(found, dict)
        return found
