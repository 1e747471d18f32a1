"""There and back through an object store."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from oncemq.cli.main import cli
from oncemq.protocol.errors import PipelineFailed, PipelineInvalid
from oncemq.spark.lake import archive, files, layout, restore
from oncemq.spark.lake.archiver import archive_pipeline
from oncemq.spark.lake.data_source import read_part
from oncemq.spark.lake.files import list_files
from oncemq.spark.lake.plan import make_plan
from oncemq.spark.lake.selection import Selection
from oncemq.spark.lake.survey import survey
from oncemq.spark.targets.files.folder import StoredFile, visible_files
from oncemq.spark.targets.objects.object_folder import ObjectFolder
from tests.spark.lake.archives import add, add_to, rows
from tests.spark.lake.test_archiver import messages, put
from tests.spark.targets.sink_drivers import ParquetBucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.client.sync import Client
    from oncemq.testing.broker_process import BrokerProcess
    from tests.spark.targets.s3_server import S3Server


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_topics_are_archived_in_a_store_and_restored(
    spark: SparkSession, broker: BrokerProcess, client: Client, s3: S3Server, tmp_path: Path, kind: str
) -> None:
    lake = f"s3a://lake/{tmp_path.name}"
    client.create_topic("orders of ü", retain_ms=3_600_000)
    put(client, "orders of ü", range(7))
    expected = messages(client, "orders of ü")
    done = archive(
        lake,
        topic="orders of ü",
        format=kind,
        subscription="lake",
        checkpoint=str(tmp_path / "checkpoint"),
        url=broker.url,
        session=spark,
    )
    assert done.rows == len(expected)
    assert any(name.startswith("topic=orders%20of%20%C3%BC/date=") for name in s3.names(tmp_path.name))
    [restored] = restore(lake, to="again", create=True, url=broker.url, session=spark)
    assert restored.messages == len(expected)
    assert messages(client, "again") == expected
    [repeated] = restore(f"s3://lake/{tmp_path.name}/", to="again", url=broker.url, session=spark)
    assert repeated.before


def offsets_in(prefix: str) -> dict[str, list[int]]:
    """The offsets of each topic, as a restore reads them."""
    topics = survey(list_files(f"s3://lake/{prefix}"), Selection())
    return {
        topic: [
            int(value)
            for part in make_plan(incarnations, Selection()).parts
            for batch in read_part(part, Selection())
            for value in batch.column("value").to_pylist()
        ]
        for topic, incarnations in topics.items()
    }


def test_an_archive_of_an_earlier_version_that_was_copied_to_a_store_is_restored(s3: S3Server, tmp_path: Path) -> None:
    """Its files do not have the column `schema_version`."""
    add(tmp_path, 0, rows("a", range(4)))
    for path in tmp_path.glob("topic=*/*/*"):
        data = io.BytesIO()
        pq.write_table(pq.ParquetFile(path).read().drop_columns(["schema_version"]), data)
        obstore.put(s3.store(tmp_path.name), str(path.relative_to(tmp_path)), data.getvalue())
    assert offsets_in(tmp_path.name) == {"a": [0, 1, 2, 3]}


def test_a_batch_that_is_published_while_the_files_are_listed_is_read_as_a_whole(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = ParquetBucket(s3, tmp_path.name, layout.PARTITION_BY)
    add_to(stored, 0, rows("a", range(3)))
    lists: list[int] = []

    def list_slowly(folder: ObjectFolder) -> Iterable[StoredFile]:
        if not lists:
            add_to(stored, 1, rows("a", range(3, 6)) + rows("b", range(3)))
        found = sorted(visible_files(folder))
        lists.append(len(found))
        return found[: 2 if len(lists) == 1 else None]

    monkeypatch.setattr(files, "visible_files", list_slowly)
    assert offsets_in(tmp_path.name) == {"a": list(range(6)), "b": [0, 1, 2]}
    assert lists == [3, 3]


def test_half_a_batch_in_a_store_is_not_restored(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = ParquetBucket(s3, tmp_path.name, layout.PARTITION_BY)
    add_to(stored, 0, rows("a", range(3)))
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(ObjectFolder, "copy", lambda *_: 1 // 0)
        add_to(stored, 1, rows("a", range(3, 6)))
    with pytest.raises(PipelineFailed, match="was interrupted while it published a batch"):
        offsets_in(tmp_path.name)
    add_to(stored, 1, rows("a", range(3, 6)))
    assert offsets_in(tmp_path.name) == {"a": list(range(6))}


def test_the_command_accepts_urls(s3: S3Server, broker: BrokerProcess, tmp_path: Path) -> None:
    arguments = ["pipeline", "restore", "--to", "x", "--url", broker.url, "--from"]
    result = CliRunner().invoke(cli, [*arguments, f"s3://lake/{tmp_path.name}"])
    assert result.exit_code == PipelineInvalid.exit_code
    assert f"s3://lake/{tmp_path.name} is not an archive" in result.output
    assert "does not exist" in CliRunner().invoke(cli, [*arguments, str(tmp_path / "nothing")]).output


def test_the_checkpoint_of_an_archive_in_a_store_is_elsewhere(s3: S3Server) -> None:
    with pytest.raises(PipelineInvalid, match="needs --subscription and --checkpoint"):
        archive_pipeline("s3://lake/orders", topic="orders")
