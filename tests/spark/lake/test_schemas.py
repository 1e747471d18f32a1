"""The schemas beside an archive, against a real broker and without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncemq.client.sync import Client
from oncemq.spark.broker import Broker
from oncemq.spark.lake.schemas import SchemaKeeper, restore_schema
from oncemq.spark.pipeline.model import Source
from oncemq.spark.pipeline.progress import SilentReporter
from oncemq.spark.targets.files.disk import Disk
from tests.spark.targets.failing_disk import Stopped

if TYPE_CHECKING:
    from oncemq.testing.broker_process import BrokerProcess
    from tests.spark.targets.s3_server import S3Server

ONE, TWO = "id: int64", "id: int64, name: string"


class Archive:
    def __init__(self, folder: str, broker: BrokerProcess, client: Client) -> None:
        self.folder, self._broker, self._client = folder, broker, client
        client.create_topic("orders", retain_ms=3_600_000)
        client.put_schema("orders", ONE, compatibility="full")

    def run(self) -> None:
        """A run of the archive that does not find messages."""
        SchemaKeeper(self.folder, Source(topic="orders"), Broker(url=self._broker.url), SilentReporter()).begin(
            "archive"
        )

    def restored(self) -> tuple[int, str]:
        """The number of versions in the archive, and their compatibility rule."""
        [topic_id] = [info.topic_id for info in self._client.topics() if info.name == "orders"]
        self._client.create_topic("again", retain_ms=3_600_000)
        restore_schema(self._client, self.folder, "orders", [topic_id], "again")
        found = self._client.schema("again")
        self._client.delete_topic("again")
        return (0, "") if found is None else (len(found.versions), found.compatibility)


@pytest.fixture(params=["disk", "s3"])
def archive(request: pytest.FixtureRequest, broker: BrokerProcess, client: Client, tmp_path: Path) -> Archive:
    if request.param == "disk":
        return Archive(str(tmp_path), broker, client)
    s3: S3Server = request.getfixturevalue("s3")
    assert s3.url
    return Archive(f"s3://lake/{tmp_path.name}", broker, client)


def test_each_run_stores_the_versions_of_its_topics(archive: Archive, client: Client) -> None:
    assert archive.restored() == (0, "")
    archive.run()
    assert archive.restored() == (1, "full")
    client.put_schema("orders", TWO)
    archive.run()
    assert archive.restored() == (2, "full")


def test_a_run_that_knows_fewer_versions_replaces_nothing(
    archive: Archive, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked the broker before another run did, and writes after it."""
    late = client.schema("orders")
    client.put_schema("orders", TWO)
    archive.run()
    with monkeypatch.context() as patch:
        patch.setattr(Client, "schema", lambda *_: late)
        archive.run()
    assert archive.restored() == (2, "full")


def test_a_topic_that_is_deleted_while_its_schema_is_read_does_not_stop_the_run(
    broker: BrokerProcess, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(str(tmp_path), broker, client)
    schema = Client.schema

    def late(own: Client, topic: str) -> object:
        client.delete_topic(topic)
        return schema(own, topic)

    monkeypatch.setattr(Client, "schema", late)
    archive.run()
    assert list(tmp_path.rglob("*.json")) == []


def test_a_run_that_dies_while_it_writes_leaves_the_former_file(
    broker: BrokerProcess, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(str(tmp_path), broker, client)
    archive.run()
    client.put_schema("orders", TWO)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Disk, "write_file", write_a_part)
        archive.run()
    assert archive.restored() == (1, "full")


def write_a_part(_: Disk, path: str, data: bytes) -> None:
    Path(path).write_bytes(data[: len(data) // 2])
    raise Stopped
