"""A broker process whose system clock is years ahead of its journal, which looks like a leap of the clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncemq.journal.contract import Journal
from oncemq.journal.files.journal import open_files
from oncemq.journal.postgres.standby import open_postgres
from oncemq.protocol import commands
from oncemq.testing.broker_process import BrokerProcess
from oncemq.testing.postgres import url_of
from tests.acceptance.processes import SMALL
from tests.broker.rig import Rig
from tests.forking import ForkedBroker

YEAR_2016_MS = 1_460_000_000_000
YEAR_MS = 365 * 24 * 3600 * 1000


@pytest.fixture(params=["files", "postgresql"])
def flags(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """The flags of a broker on a journal that was written in 2016. It has a message that is retained for an hour."""
    journal: Journal
    flags: tuple[str, ...]
    if request.param == "files":
        journal, flags = open_files(tmp_path / "data", segment_bytes=2**20), SMALL
    else:
        dsn = request.getfixturevalue("postgres")
        journal, flags = open_postgres(dsn, lease_ms=60_000), ("--journal", url_of(dsn), "--lease-ms", "500")
    rig = Rig(journal)
    rig.clock.time_ms = YEAR_2016_MS
    rig.do(commands.CreateTopic("kept", retain_ms=3_600_000))
    rig.put(b"one", topic="kept")
    rig.broker.stop()
    return flags


def _values(broker: BrokerProcess) -> tuple[list[str], int]:
    """Return the retained messages, and how far the broker's clock is behind."""
    with broker.connect() as client:
        behind_ms = client.health().counters.get("clock_behind_ms", 0)
        return [message.text for message in client.read("kept")], behind_ms


def test_nothing_expires_before_the_clock_is_confirmed(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with ForkedBroker(tmp_path / "data", *flags) as broker:
        values, behind_ms = _values(broker)
        assert values == ["one"]
        assert behind_ms > 5 * YEAR_MS
        assert "the journal ends at 2016-04-07" in broker.log_tail()
    with ForkedBroker(tmp_path / "data", *flags, "--trust-clock") as broker:
        assert _values(broker) == ([], 0)
    with ForkedBroker(tmp_path / "data", *flags) as broker:
        assert _values(broker) == ([], 0)
