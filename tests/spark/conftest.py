"""Fixtures for tests of Spark: one session for all of them, since a JVM takes seconds to start.

Under xdist all tests of this folder run in one worker (scheduling.py). A test that starts a JVM of its own has the
marker `spark`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from oncemq.client.sync import Client
from oncemq.spark import connections
from oncemq.testing.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.targets.s3_server import S3Server


@pytest.fixture(scope="session", autouse=True)
def _cache_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests keep nothing in the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def spark(_one_s3: S3Server, oncemq_spark: SparkSession) -> SparkSession:
    """A Spark session on two cores."""
    return oncemq_spark


@pytest.fixture(scope="session")
def _one_s3() -> Iterator[S3Server]:
    """Spark's workers get the variables that lead to it from the JVM, so they are set before it starts."""
    from tests.spark.targets.s3_server import running_s3, set_environment

    with running_s3() as server, pytest.MonkeyPatch.context() as patch:
        set_environment(server, patch)
        yield server


@pytest.fixture
def s3(_one_s3: S3Server) -> S3Server:
    """An S3 server for all tests; each uses a prefix of its own."""
    _one_s3.page_size = 0
    _one_s3.ignores_conditions = False
    return _one_s3


@pytest.fixture(scope="session")
def _one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture
def broker(_one_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker without topics. One process for all tests; who stops it starts it again."""
    yield _one_broker
    connections.close_all()
    with _one_broker.connect() as client:
        for entry in client.patterns():
            client.unsubscribe(entry.pattern, entry.subscriber)
        for topic in client.topics():
            client.delete_topic(topic.name)


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    """A client of it."""
    with broker.connect() as connected:
        yield connected
