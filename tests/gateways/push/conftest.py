"""One broker and one gateway for all tests that don't kill them; each test has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncemq.client.sync import Client
from oncemq.testing.broker_process import BrokerProcess
from tests.forking import ForkedBroker
from tests.gateways.push.peers import Asker
from tests.gateways.push.processes import GatewayProcess, settings_here

_FLAGS = ("--segment-bytes=6MiB", "--batch-bytes-max=4MiB", "--log-level=warning")


@pytest.fixture(scope="package")
def push_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = ForkedBroker(tmp_path_factory.mktemp("push") / "data", *_FLAGS)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="package")
def push(push_broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    local = f"ipc://{tmp_path_factory.mktemp('feed')}/s"
    gateway = GatewayProcess(push_broker.url, settings_here(feed_listen=(local,)))
    gateway.start()
    yield gateway
    gateway.kill()


@pytest.fixture
def client(push_broker: BrokerProcess) -> Iterator[Client]:
    with push_broker.connect() as client:
        yield client


@pytest.fixture
def asker(push: GatewayProcess) -> Iterator[Asker]:
    asker = Asker(push.settings.acks)
    yield asker
    asker.close()
