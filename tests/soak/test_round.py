"""A round notices what ends in it by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncemq.tools.faults.processes import RAISED
from tests.soak import hostile
from tests.soak.clients.client import Addresses, RoundContext
from tests.soak.resources import Watch
from tests.soak.round import Round
from tests.soak.server import Server

_TIMEOUT_S = 30.0


def _fail(_addresses: Addresses, _seconds: float) -> None:
    raise AssertionError("the attack does not work")


def _be_disconnected(_addresses: Addresses, _seconds: float) -> None:
    raise ConnectionResetError


def test_an_attack_that_fails_is_a_problem_of_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "ATTACKS", {"broken": _fail, "disconnected": _be_disconnected})
    server = Server(tmp_path)
    context = RoundContext(server.addresses, tmp_path, tmp_path, seed=1, number=1, pause_s=0.0)
    round = Round(context, server, Watch(server), "steady")
    for kind in ("broken", "disconnected"):
        round._start_attack(kind, 1.0)
        assert round._attack is not None
        assert round._attack.wait(_TIMEOUT_S) is not None
        round._end_attack()
    assert round.problems == [f"the attack 'broken' ended with exit code {RAISED}"]
