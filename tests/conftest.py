"""Fixtures for all tests: a broker as a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.processes import BrokerProcess


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Not started yet: `start`, `kill`, `restart` as you like; whatever runs at the end is killed."""
    process = BrokerProcess(tmp_path / "data")
    yield process
    process.kill()
