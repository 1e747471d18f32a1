"""Streams on a cluster of two workers: `make test-cluster`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncemq.client.sync import Client
from oncemq.spark import session
from oncemq.testing.broker_process import BrokerProcess
from tests.spark.cluster import Cluster
from tests.spark.faults import faulty
from tests.spark.faults.streams import Stream, make_topics, projected, put_numbers, rows_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.cluster


#: A task that takes longer than the others soon gets a second, concurrent attempt.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
}
#: Executors have folders of their own, and need faulty.py.
TESTS = {"spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2])}


class TwoHosts(Cluster):
    """Spark tries a task on another host, and two workers on one address would be one host."""

    def _spawn(self, name: str, main_class: str, *options: str) -> subprocess.Popen[bytes]:
        host = ("--host", "127.0.0.2") if name == "worker-1" else ()
        return super()._spawn(name, main_class, *host, *options)


@pytest.fixture(scope="module")
def cluster_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with TwoHosts(tmp_path_factory.mktemp("cluster")) as cluster:
        spark = session.build("streams", master=cluster.url, conf=cluster.conf | SPECULATION | TESTS)
        try:
            faulty.register(spark)
            yield spark
        finally:
            spark.stop()


def test_a_stream_over_two_workers_has_each_message_once_and_in_order(
    cluster_spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    stream = Stream(folder=str(tmp_path), url=broker.url, source="in", target="out", rows_max=40_000, format="oncemq")
    make_topics(client, stream)
    put_numbers(client, "in", 0, 70_000)
    stream.run(cluster_spark)
    put_numbers(client, "in", 70_000, 75_000)
    stream.run(cluster_spark)
    assert rows_in(client, "out") == projected(0, 75_000)


def test_a_task_whose_worker_dies_is_tried_again_and_leaves_nothing_behind(
    cluster_spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    stream = Stream(folder=str(tmp_path), url=broker.url, source="in", target="out")
    make_topics(client, stream)
    put_numbers(client, "in", 0, 300)
    stream.faults.plant(faulty.STAGED, faulty.DIE, batch=1)
    stream.run(cluster_spark)
    assert stream.faults.is_met(faulty.STAGED)
    assert rows_in(client, "out") == projected(0, 300)


def test_of_two_attempts_of_a_slow_task_one_is_published(
    cluster_spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    stream = Stream(folder=str(tmp_path), url=broker.url, source="in", target="out")
    make_topics(client, stream)
    put_numbers(client, "in", 0, 300)
    # It has staged all of its rows and does not end: without another attempt the stream would stand still.
    stream.faults.plant(faulty.STAGED, faulty.HANG, batch=1)
    stream.run(cluster_spark)
    assert stream.faults.is_met(faulty.STAGED)
    assert rows_in(client, "out") == projected(0, 300)
