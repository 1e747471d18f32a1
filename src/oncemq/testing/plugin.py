"""A pytest plug-in: brokers and clients for tests.

    def test_orders(oncemq_client):
        oncemq_client.subscribe("orders", "kitchen")
        oncemq_client.put("orders", "one pizza")

`oncemq_broker` is a real broker in a process of its own, which can be killed. `oncemq_client` is connected to it.
`oncemq_embedded` is a client with a broker inside the test's process, which is faster.

`oncemq_postgres` is the DSN of an empty PostgreSQL database, for tests of an inbox. Its server is the one that the
environment variable ONCEMQ_TEST_POSTGRES names, or one that is started for the tests (postgres.py).

`oncemq_spark` is a Spark session on two cores, one for all tests (spark.py).

OnceMQ is not imported before a test uses one of these fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.client.sync import Client
    from oncemq.testing.broker_process import BrokerProcess
    from oncemq.testing.postgres import PostgresServer


@pytest.fixture
def oncemq_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A running broker with a folder of its own: `.url`, `.connect()`, `.kill()`, `.restart()`, `.stop()`."""
    from oncemq.testing.broker_process import BrokerProcess

    broker = BrokerProcess(tmp_path / "oncemq-data")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def oncemq_client(oncemq_broker: BrokerProcess) -> Iterator[Client]:
    """A client of `oncemq_broker`."""
    client = oncemq_broker.connect()
    yield client
    _abandon(client)


def _abandon(client: Client) -> None:
    """Close a client. A test may have killed its broker, or left work that fails: that is not an error here."""
    from oncemq.client.internal import internal_api

    internal_api(client).abandon()


@pytest.fixture
def oncemq_embedded(tmp_path: Path) -> Iterator[Client]:
    """A client with a broker inside this process, in a folder of its own."""
    import oncemq

    client = oncemq.connect(f"file:{tmp_path / 'oncemq-embedded'}")
    yield client
    _abandon(client)


@pytest.fixture(scope="session")
def oncemq_postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for all tests of this process. It is started when the first test uses it (about 1 s)."""
    from oncemq.testing.postgres import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture
def oncemq_postgres(oncemq_postgres_server: PostgresServer) -> Iterator[str]:
    """The DSN of an empty PostgreSQL database."""
    with oncemq_postgres_server.database() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def oncemq_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session for all tests of this process. It is started when the first test uses it (some seconds)."""
    from oncemq.testing.spark import spark_session

    with spark_session(tmp_path_factory.mktemp("oncemq-spark")) as spark:
        yield spark
