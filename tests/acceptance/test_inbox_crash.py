"""The inbox's crash campaign, a short one. `python -m tests.acceptance.inbox_crash` runs a long one."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from tests.acceptance.inbox_crash import _differences

CAMPAIGN_DEADLINE_S = 240
KILLS = 30


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_each_effect_is_stored_once_while_its_consumer_is_killed_again_and_again(database: str) -> None:
    seed = random.SystemRandom().randrange(2**32)
    command = [sys.executable, "-m", "tests.acceptance.inbox_crash", "--kills", str(KILLS), "--database", database]
    ended = subprocess.run(
        [*command, "--seed", str(seed)], capture_output=True, text=True, timeout=CAMPAIGN_DEADLINE_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    evidence = json.loads(ended.stdout)
    assert evidence["problems"] == []
    assert sum(count for kind, count in evidence["kills"].items() if kind != "broker") == KILLS
    assert evidence["effects"] == evidence["published"] > 0


def test_the_evidence_names_what_is_doubled_missing_or_out_of_order() -> None:
    assert list(_differences([0, 1, 2], 3)) == []
    assert list(_differences([0, 1, 1], 3)) == [
        "1 effects are doubled, such as [1]",
        "1 effects are missing, such as [2]",
    ]
    assert list(_differences([0, 2, 1], 3)) == ["effects are out of order, or nobody's"]
    assert list(_differences([0, 1, 2, 9], 3)) == ["effects are out of order, or nobody's"]
