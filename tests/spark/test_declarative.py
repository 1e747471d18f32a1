"""The example of a declarative pipeline, run twice: our source and sink under `spark-pipelines`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oncemq.client.sync import Client
from oncemq.testing.broker_process import BrokerProcess

RUN = Path(__file__).parents[2] / "examples" / "spark" / "declarative" / "run.py"
_DEADLINE_S = 600


@pytest.mark.cluster
def test_a_second_run_adds_only_what_came_since(broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    for topic in ("orders", "dear-orders"):
        client.create_topic(topic, retain_ms=3_600_000)
    for number in (1, 2):
        orders = [{"item": f"pizza {number}", "price": 9.5}, {"item": "tea", "price": 2.5}]
        client.put_many("orders", [json.dumps(order) for order in orders])
        command = [sys.executable, str(RUN), str(tmp_path)]
        subprocess.run(command, env={**os.environ, "ONCEMQ_URL": broker.url}, check=True, timeout=_DEADLINE_S)
    assert [json.loads(message.value)["item"] for message in client.read("dear-orders")] == ["pizza 1", "pizza 2"]
