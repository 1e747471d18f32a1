"""A broker for the tests of a file, and a shell for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemq.testing.broker_process import BrokerProcess
from tests.cli.shell import Shell
from tests.forking import ForkedBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = ForkedBroker(tmp_path_factory.mktemp("broker") / "data")
    process.start()
    yield process
    process.kill()


@pytest.fixture(autouse=True)
def separate_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of commands is not written to the user's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))


@pytest.fixture
def shell(broker: BrokerProcess) -> Iterator[Shell]:
    shell = Shell(broker.url)
    yield shell
    shell.end_all()
