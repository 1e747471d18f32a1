"""Fixtures for all tests: a broker as a process of its own, and an empty PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemq.broker.process import BrokerProcess
from tests.acceptance.processes import SMALL


@pytest.fixture(scope="session", autouse=True)
def _state_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands that tests run keep nothing in the user's state folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


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
