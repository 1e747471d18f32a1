"""A pipeline into each kind of target: ids go into a topic, and each must be in the target once."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path

import psycopg
import pyarrow.dataset
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from oncemq.client.sync import Client
from oncemq.spark.lake.archiver import MESSAGES_PER_TRIGGER, archive_pipeline
from oncemq.spark.pipeline import Pipeline, Source, Transform, Value, run
from oncemq.spark.targets.declarations import DeltaTarget, ParquetTarget, PostgresTarget, Target, TopicTarget
from tests.spark.checkpoints import Checkpoint

_HOUR_MS = 3_600_000


def deduplicate(rows: DataFrame) -> DataFrame:
    """Has a state for each id."""
    return rows.select("id").dropDuplicates(["id"])


def put_ids(client: Client, topic: str, first: int, count: int) -> int:
    """Put ids, and return the next one."""
    client.put_many(topic, [json.dumps({"id": number}) for number in range(first, first + count)])
    return first + count


class Stream(ABC):
    """A topic, and a pipeline that copies its ids into a target."""

    #: Whether acked messages are kept for a while, or deleted.
    retain_ms = 0

    def __init__(self, client: Client, name: str, folder: Path, *, is_stateful: bool = False) -> None:
        self.name = name
        self.folder = folder
        self.put_ids = 0
        self._client = client
        self._is_stateful = is_stateful
        self._max_per_trigger = 0
        client.create_topic(name, retain_ms=self.retain_ms)
        client.subscribe(name, self.pipeline().subscription, "earliest")

    @abstractmethod
    def target(self) -> Target:
        """Where the ids go."""

    @abstractmethod
    def found(self) -> list[int]:
        """The ids in the target, as any reader finds them."""

    def pipeline(self) -> Pipeline:
        return Pipeline(
            name=self.name,
            source=Source(topic=self.name, max_per_trigger=self._max_per_trigger),
            value=Value(format="json", schema="id bigint"),
            transform=Transform(function=deduplicate)
            if self._is_stateful
            else Transform(sql="SELECT id FROM messages"),
            target=self.target(),
            checkpoint=str(self.folder / "checkpoint"),
        )

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(Path(self.pipeline().checkpoint))

    @property
    def acks_last(self) -> bool:
        return self.pipeline().ack_last

    def put(self, count: int) -> None:
        self.put_ids = put_ids(self._client, self.name, self.put_ids, count)

    def run(self, url: str, session: SparkSession | None, *, max_per_trigger: int = 0) -> int:
        """Process what is there. Returns the number of rows that were read."""
        self._max_per_trigger = max_per_trigger
        return run(self.pipeline(), url=url, session=session).rows

    def forget_checkpoint(self) -> None:
        self.checkpoint.empty()


class TopicStream(Stream):
    retain_ms = _HOUR_MS

    def target(self) -> Target:
        return TopicTarget(topic=f"{self.name}-out", create=True)

    def found(self) -> list[int]:
        if f"{self.name}-out" not in {topic.name for topic in self._client.topics()}:
            return []
        return [json.loads(message.value)["id"] for message in self._client.read(f"{self.name}-out")]


class ParquetStream(Stream):
    def target(self) -> Target:
        return ParquetTarget(path=str(self.folder / "rows"))

    def found(self) -> list[int]:
        files = [str(path) for path in (self.folder / "rows").glob("*.parquet")]
        return pyarrow.dataset.dataset(files, format="parquet").to_table()["id"].to_pylist() if files else []


class DeltaStream(Stream):
    retain_ms = _HOUR_MS

    def target(self) -> Target:
        return DeltaTarget(path=str(self.folder / "rows"))

    def found(self) -> list[int]:
        path = str(self.folder / "rows")
        found = DeltaTable(path).to_pyarrow_table()["id"].to_pylist() if DeltaTable.is_deltatable(path) else []
        assert isinstance(found, list)
        return found


class PostgresStream(Stream):
    def __init__(self, client: Client, name: str, folder: Path, database: str, *, is_stateful: bool = False) -> None:
        self._database = database
        super().__init__(client, name, folder, is_stateful=is_stateful)

    def target(self) -> Target:
        return PostgresTarget(url=self._database, table=self.name.replace("-", "_"), create=True)

    def found(self) -> list[int]:
        name = self.name.replace("-", "_")
        with psycopg.connect(self._database) as connection:
            if connection.execute("select to_regclass(%s) is null", (name,)).fetchone() == (True,):
                return []
            return [number for (number,) in connection.execute(f"select id from {name}").fetchall()]


class ArchiveStream(Stream):
    """An archive that acks at the end of each run: then only the archive has the messages."""

    def pipeline(self) -> Pipeline:
        return archive_pipeline(
            str(self.folder / "rows"),
            topic=self.name,
            subscription=self.name,
            ack_last=True,
            max_per_trigger=self._max_per_trigger or MESSAGES_PER_TRIGGER,
        )

    def target(self) -> Target:
        return self.pipeline().target

    def found(self) -> list[int]:
        files = [str(path) for path in (self.folder / "rows").glob("topic=*/date=*/*.parquet")]
        if not files:
            return []
        values = pyarrow.dataset.dataset(files, format="parquet").to_table(["value"])["value"].to_pylist()
        return [json.loads(value)["id"] for value in values]


def make_streams(client: Client, folder: Path, database: str, prefix: str) -> list[Stream]:
    """One stream into each kind of target."""
    (folder / "streams").mkdir(exist_ok=True)

    def place(kind: str) -> Path:
        found = folder / "streams" / f"{prefix}-{kind}"
        found.mkdir()
        return found

    return [
        TopicStream(client, f"{prefix}-topic", place("topic")),
        ParquetStream(client, f"{prefix}-parquet", place("parquet"), is_stateful=True),
        DeltaStream(client, f"{prefix}-delta", place("delta")),
        PostgresStream(client, f"{prefix}-postgres", place("postgres"), database),
        ArchiveStream(client, f"{prefix}-archive", place("archive")),
    ]
