"""Short campaigns with brokers on PostgreSQL that are killed, stopped and replaced (campaigns/standby.py)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

from oncemq.testing.postgres import ENVIRONMENT, PostgresServer

CAMPAIGN_DEADLINE_S = 240


def _campaign(server: PostgresServer, name: str, *arguments: str) -> dict[str, Any]:
    seed = random.SystemRandom().randrange(2**32)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.acceptance", "--only", name, "--seed", str(seed), "--json", *arguments],
        env={**os.environ, ENVIRONMENT: server.dsn},
        capture_output=True,
        text=True,
        timeout=CAMPAIGN_DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [report] = json.loads(ended.stdout)
    assert report["problems"] == []
    assert report["stored"] >= report["acknowledged"] > 0
    return dict(report)


def test_a_standby_takes_over_from_a_broker_that_is_killed_or_stopped(oncemq_postgres_server: PostgresServer) -> None:
    report = _campaign(oncemq_postgres_server, "standby", "--kills", "2", "--lease-ms", "1000")
    assert report["broker_kills"] == {"killed while active": 1, "stopped while active": 1}


def test_nothing_is_lost_duplicated_or_reordered_on_postgresql(oncemq_postgres_server: PostgresServer) -> None:
    report = _campaign(oncemq_postgres_server, "crash-postgres", "--kills", "3")
    assert sum(report["broker_kills"].values()) == 3
