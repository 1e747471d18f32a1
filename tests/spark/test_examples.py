"""The examples for Spark run and say what they should."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oncemq.testing.broker_process import BrokerProcess

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"


def test_the_notebook_of_orders_runs(
    spark: SparkSession,
    broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ONCEMQ_URL", broker.url)
    # It is shared with other tests.
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    runpy.run_path(str(EXAMPLES / "orders.py"))
    said = capsys.readouterr().out
    assert "|pasta|   4| 32.0|" in said
    assert "after the first run: 8 messages" in said
    assert "after two more runs: 9 messages" in said
    assert "totals-query: 1 of 13 not acked" in said
