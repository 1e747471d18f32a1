"""Each kind of case runs on a real broker, for a moment. What it measures is not asserted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oncemq.tools import bench
from oncemq.tools.bench.results import Row, make_row, with_cpu


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark starts its broker in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("oncemq.tools.bench.environment._WARM_SECONDS_MAX", 0.0)
    monkeypatch.setattr("oncemq.tools.bench.environment.refuse_tmpfs", lambda _: None)


def _run(case: str, *, is_pinned: bool = False) -> list[Row]:
    return bench.run(None, 0.1, [case], lambda _: None, is_pinned)


@pytest.mark.usefixtures("here")
def test_a_single_put_is_compared_with_a_sync_and_an_echo_of_its_transport() -> None:
    [row] = _run("put one by one, 100 B", is_pinned=len(os.sched_getaffinity(0)) > 1)
    assert "sync" in row.limit_name
    assert "ZeroMQ tcp echo" in row.limit_name or "TCP echo" in row.limit_name
    assert row.broker_us
    assert row.client_us


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_sixty_four_clients_are_compared_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemq.tools.bench.cases._SPREAD", {1: (1, 1), 64: (2, 2)})
    [row] = _run("put one by one, 64 clients, 100 B")
    assert row.limit_name == "one client"
    assert row.value > 0


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_the_memory_of_idle_connections_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemq.tools.bench.idle_connections._COUNT", 50)
    puts, memory = _run("put one by one, 5,000 idle")
    assert puts.limit_name.startswith("without them")
    assert memory.unit == "MB"


def test_the_smallest_bound_is_the_limit() -> None:
    row = make_row("iterate", 50.0, "messages/s", {"bare decoder": 200.0, "page cache": 100.0}, [0.001, 0.003, 0.002])
    assert (row.limit_name, row.limit, row.ratio, row.p50_ms) == ("page cache", 100.0, 0.5, 2.0)


def test_cpu_time_that_was_not_measured_is_absent() -> None:
    row = with_cpu(make_row("put", 1.0, "ms (median)", {"sync": 1.0}), 1000, 0.0, 0.05)
    assert (row.broker_us, row.client_us) == (None, 50.0)
