"""There and back through an object store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from oncemq.cli.main import cli
from oncemq.protocol.errors import PipelineInvalid
from oncemq.spark.lake import archive, restore
from oncemq.spark.lake.archiver import archive_pipeline
from tests.spark.lake.test_archiver import messages, put

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


def test_the_command_accepts_urls(s3: S3Server, broker: BrokerProcess, tmp_path: Path) -> None:
    arguments = ["pipeline", "restore", "--to", "x", "--url", broker.url, "--from"]
    result = CliRunner().invoke(cli, [*arguments, f"s3://lake/{tmp_path.name}"])
    assert result.exit_code == PipelineInvalid.exit_code
    assert f"s3://lake/{tmp_path.name} is not an archive" in result.output
    assert "does not exist" in CliRunner().invoke(cli, [*arguments, str(tmp_path / "nothing")]).output


def test_the_checkpoint_of_an_archive_in_a_store_is_elsewhere(s3: S3Server) -> None:
    with pytest.raises(PipelineInvalid, match="needs --subscription and --checkpoint"):
        archive_pipeline("s3://lake/orders", topic="orders")
