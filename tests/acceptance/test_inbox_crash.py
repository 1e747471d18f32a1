"""A short crash campaign against consumers with an inbox. `make crash ONLY=inbox-postgres` runs a long one."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

CAMPAIGN_DEADLINE_S = 240
KILLS = 30


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_each_effect_is_stored_once_while_its_consumer_is_killed_again_and_again(database: str) -> None:
    seed = random.SystemRandom().randrange(2**32)
    command = [sys.executable, "-m", "tests.acceptance", "--only", f"inbox-{database}", "--kills", str(KILLS), "--json"]
    ended = subprocess.run(
        [*command, "--seed", str(seed)], capture_output=True, text=True, timeout=CAMPAIGN_DEADLINE_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [report] = json.loads(ended.stdout)
    assert report["problems"] == []
    assert sum(report["kills"].values()) == KILLS
    assert report["stored"] == report["acknowledged"] > 0
