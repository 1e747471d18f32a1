"""A broker for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncemq.testing.broker_process import BrokerProcess
from tests.forking import ForkedBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = ForkedBroker(tmp_path_factory.mktemp("udp") / "data", "--segment-bytes=6MiB", "--batch-bytes-max=4MiB")
    broker.start()
    yield broker
    broker.stop()
