"""Fixtures for all tests: a broker as a process of its own, and an empty PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemq.broker.process import BrokerProcess
from tests.acceptance.processes import SMALL


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Not started yet: `start`, `kill`, `restart` as you like; whatever runs at the end is killed."""
    process = BrokerProcess(tmp_path / "data", *SMALL)
    yield process
    process.kill()


@pytest.fixture
def postgres(oncemq_postgres: str) -> str:
    """The DSN of an empty PostgreSQL database."""
    return oncemq_postgres
