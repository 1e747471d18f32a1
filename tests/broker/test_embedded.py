"""The broker inside the process of its clients, on folders that it did not create itself."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import oncemq
from oncemq.journal.files.journal import open_files

SEGMENT_BYTES = 2**20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a journal with small segments."""
    journal = open_files(tmp_path / "data", segment_bytes=SEGMENT_BYTES)
    list(journal.load().groups)
    journal.close()
    return tmp_path / "data"


def test_a_batch_that_no_segment_can_hold_is_refused_with_the_limit(folder: Path) -> None:
    with oncemq.connect(f"file:{folder}") as client:
        client.create_topic("orders")
        with pytest.raises(oncemq.errors.TooLarge, match=str(client.batch_bytes_max)):
            client.put("orders", bytes(2 * SEGMENT_BYTES))
        assert client.put("orders", b"small").offset == 0


def test_a_batch_of_the_size_that_the_broker_announces_is_stored(folder: Path) -> None:
    with oncemq.connect(f"file:{folder}") as client:
        client.subscribe("orders", "kitchen")
        assert SEGMENT_BYTES * 0.98 < client.batch_bytes_max < SEGMENT_BYTES
        size = client.batch_bytes_max - 1024
        for _ in range(3):
            client.put("orders", bytes(size))
        assert [len(message.value) for message in client.read("orders")] == 3 * [size]


TEN_YEARS_MS = 10 * 365 * 24 * 3600 * 1000


def test_a_leap_of_the_clock_expires_nothing_before_it_is_confirmed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with oncemq.connect(f"file:{folder}") as client:
        client.create_topic("kept", retain_ms=3_600_000)
        client.put("kept", "one")
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + TEN_YEARS_MS * 1_000_000)
    with oncemq.connect(f"file:{folder}") as client:
        assert [message.text for message in client.read("kept")] == ["one"]
        assert client.health().counters["clock_behind_ms"] > TEN_YEARS_MS / 2
    assert "ONCEMQ_TRUST_CLOCK" in caplog.text
    monkeypatch.setenv("ONCEMQ_TRUST_CLOCK", "1")
    with oncemq.connect(f"file:{folder}") as client:
        assert list(client.read("kept")) == []
        assert "clock_behind_ms" not in client.health().counters
