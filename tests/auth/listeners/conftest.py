"""One broker process for all listeners. Each walk has topics of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemq.client.sync import Client
from tests.auth.served import ServedBroker


@pytest.fixture(scope="package")
def served() -> Iterator[ServedBroker]:
    # The paths of Unix sockets must be short.
    with tempfile.TemporaryDirectory(prefix="omq-") as folder:
        broker = ServedBroker(Path(folder))
        broker.start()
        try:
            broker.wait_until_http()
            yield broker
        finally:
            broker.kill()


@pytest.fixture(scope="package")
def administrator(served: ServedBroker) -> Iterator[Client]:
    """Sees everything: whether somebody else has had an effect."""
    with served.connect() as client:
        yield client
