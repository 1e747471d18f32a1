"""On a cluster: `make test-cluster`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from oncemq.spark import session
from tests.spark.cluster import Cluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def places() -> type[DataSource]:
    """A source that says where it is read. A class within a function is sent whole: workers can't import the tests."""

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(4)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int, str, str]]:
            import os

            import oncemq

            yield partition.value, os.getcwd(), oncemq.__version__

    class Places(DataSource):
        @classmethod
        def name(cls) -> str:
            return "places"

        def schema(self) -> str:
            return "number int, folder string, version string"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    return Places


def test_both_workers_read_a_source_and_can_import_oncemq(cluster: Cluster) -> None:
    import oncemq

    spark = session.build("cluster", master=cluster.url, conf=cluster.conf)
    try:
        spark.dataSource.register(places())
        rows = spark.read.format("places").load().collect()
    finally:
        spark.stop()
    assert sorted(row["number"] for row in rows) == [0, 1, 2, 3]
    assert {row["version"] for row in rows} == {oncemq.__version__}
    workers = {part for row in rows for part in Path(row["folder"]).parts if part.startswith("worker-")}
    assert workers == {"worker-0", "worker-1"}
